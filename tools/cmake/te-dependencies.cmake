# Finds the libraries that te::te and te::cblas link, in the project that uses te, whether te is installed or part of the project.

# te::te links CUDA::cublasLt in projects that have enabled CUDA before.
get_property(te_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if(CUDA IN_LIST te_languages)
    find_package(CUDAToolkit QUIET)
endif()
unset(te_languages)

# te::cblas is te::te with OpenBLAS, or another CBLAS, for the GEMMs of the host target.
find_path(TE_CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas DOC "The folder of cblas.h, for te::cblas")
find_library(TE_CBLAS_LIBRARY NAMES openblas cblas DOC "A library with cblas_sgemm, for te::cblas")
mark_as_advanced(TE_CBLAS_INCLUDE_DIR TE_CBLAS_LIBRARY)
if(TE_CBLAS_INCLUDE_DIR AND TE_CBLAS_LIBRARY AND NOT TARGET te::cblas)
    add_library(te::cblas INTERFACE IMPORTED GLOBAL)
    target_compile_definitions(te::cblas INTERFACE TE_CBLAS)
    target_include_directories(te::cblas INTERFACE ${TE_CBLAS_INCLUDE_DIR})
    target_link_libraries(te::cblas INTERFACE te::te ${TE_CBLAS_LIBRARY})
endif()
