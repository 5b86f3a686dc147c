/* version.h -- the library's version. The version is set only here: CMakeLists.txt reads it from this file, and
 * tests/version.sh compares the version in MODULE.bazel with it.
 *
 * Do this:
 *     #if TE_VERSION_MAJOR == 0 && TE_VERSION_MINOR < 1
 *     #error "needs te 0.1"
 *     #endif
 */
#ifndef TE_VERSION_H
#define TE_VERSION_H

#define TE_VERSION_MAJOR 0
#define TE_VERSION_MINOR 1
#define TE_VERSION_PATCH 0

#define TE_VERSION_STRING TE__VERSION_STRING(TE_VERSION_MAJOR, TE_VERSION_MINOR, TE_VERSION_PATCH) /* "0.1.0" */
/* Two macros are needed: the first one expands its arguments to numbers, and the second one then turns these numbers
 * into text. */
#define TE__VERSION_STRING(major, minor, patch) TE__VERSION_TEXT(major, minor, patch)
#define TE__VERSION_TEXT(major, minor, patch) #major "." #minor "." #patch

#endif
