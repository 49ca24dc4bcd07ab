# find_package(kvasir): the targets kvasir::kvasir (shared) and kvasir::static.

get_filename_component(_kvasir_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET kvasir::kvasir)
  add_library(kvasir::kvasir SHARED IMPORTED)
  set_target_properties(kvasir::kvasir PROPERTIES
    IMPORTED_LOCATION "${_kvasir_prefix}/lib/libkvasir.so.@VERSION@"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "${_kvasir_prefix}/include")
endif()

if(NOT TARGET kvasir::static)
  add_library(kvasir::static STATIC IMPORTED)
  set_target_properties(kvasir::static PROPERTIES
    IMPORTED_LOCATION "${_kvasir_prefix}/lib/libkvasir.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_kvasir_prefix}/include"
    INTERFACE_LINK_LIBRARIES "gcc_s;pthread;m;dl")
endif()

unset(_kvasir_prefix)
