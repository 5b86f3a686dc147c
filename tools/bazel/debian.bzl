"""Repositories that Bazel 4.2.3 would otherwise download: taken from Debian's folders, or replaced by a few lines."""

def _stand_in(ctx):
    for path, text in ctx.attr.files.items():
        ctx.file(path, text)

stand_in = repository_rule(
    implementation = _stand_in,
    doc = "A repository with these files.",
    attrs = {"files": attr.string_dict(doc = "path: contents")},
)

def _rules(language, names):
    """A repository rules_<language> whose defs.bzl exports the rules that are built into Bazel."""
    files = {"%s/%s.bzl" % (language, name): "%s = native.%s\n" % (name, name) for name in names}
    files[language + "/defs.bzl"] = "".join(files.values())
    files[language + "/BUILD"] = ""
    if language == "cc":
        files["cc/common/builtin.bzl"] = "builtin = CcInfo\n"
        files["cc/common/cc_info.bzl"] = 'load(":builtin.bzl", "builtin")\n\nCcInfo = builtin\n'
        files["cc/common/BUILD"] = ""
    stand_in(name = "rules_" + language, files = files)

def debian_repositories():
    # Debian's rules_cc is too new for Debian's Bazel. Only Bazel's own files load the Java rules.
    _rules("cc", ["cc_binary", "cc_import", "cc_library", "cc_test", "cc_toolchain", "cc_toolchain_suite"])
    _rules("java", ["java_binary", "java_import", "java_library", "java_runtime", "java_toolchain"])

    coverage = 'filegroup(name = "coverage_report_generator", visibility = ["//visibility:public"])\n'
    stand_in(name = "remote_coverage_tools", files = {"BUILD": coverage})

    native.local_repository(name = "platforms", path = "/usr/share/bazel/platforms")
