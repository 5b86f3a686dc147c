# find_package(te [0.1] [COMPONENTS cblas]): defines te::te, and te::cblas if there is a CBLAS; the component requires one.
cmake_minimum_required(VERSION 3.18)
include(${CMAKE_CURRENT_LIST_DIR}/te-targets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/te-dependencies.cmake)

foreach(component IN LISTS te_FIND_COMPONENTS)
    if(TARGET te::${component})
        set(te_${component}_FOUND TRUE)
    elseif(te_FIND_REQUIRED_${component})
        set(te_FOUND FALSE)
        string(CONCAT te_NOT_FOUND_MESSAGE "te has no component ${component}, or what it needs was not found (cblas: cblas.h and "
               "OpenBLAS, or another CBLAS by TE_CBLAS_INCLUDE_DIR and TE_CBLAS_LIBRARY)")
    endif()
endforeach()
