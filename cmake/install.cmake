# install.cmake: what `cmake --install` puts where, and how other builds find it: find_package(tessera) and pkg-config.
# Both refer to files relative to their own place, so an installed tree may be moved.
include(CMakePackageConfigHelpers)

set(interface ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}) # before 1.0 a minor version may change the interface
set_target_properties(tessera tessera_blas PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${interface})

# What the Python package (pyproject.toml) takes along. A wheel has no symbolic links, so its libraries have one name.
if(SKBUILD)
  set_target_properties(tessera tessera_blas PROPERTIES VERSION ${interface})
  install(TARGETS tessera tessera_blas tessera_cli COMPONENT python
          LIBRARY DESTINATION tessera/lib NAMELINK_SKIP PUBLIC_HEADER DESTINATION tessera/include
          RUNTIME DESTINATION tessera/bin)
  return()
endif()
install(TARGETS tessera_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS tessera tessera_blas EXPORT tessera-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(EXPORT tessera-targets NAMESPACE tessera:: FILE tessera-targets.cmake DESTINATION ${package_dir})

set(config "include(\"\${CMAKE_CURRENT_LIST_DIR}/tessera-targets.cmake\")\n")
if(NOT BUILD_SHARED_LIBS)
  string(PREPEND config "include(CMakeFindDependencyMacro)\nfind_dependency(Threads)\n")
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/tessera-config.cmake CONTENT "${config}" @ONLY)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tessera-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tessera-config.cmake ${PROJECT_BINARY_DIR}/tessera-config-version.cmake
        DESTINATION ${package_dir})

file(RELATIVE_PATH PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" PC_PREFIX "${PC_PREFIX}")
foreach(name tessera tessera_blas)
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

# The man page and completions say what the command says of itself, so it must run here.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(PROJECT_IS_TOP_LEVEL AND Python3_FOUND AND NOT CMAKE_CROSSCOMPILING AND NOT TESSERA_SANITIZE)
  set(manual ${PROJECT_BINARY_DIR}/tessera.1 ${PROJECT_BINARY_DIR}/tessera.bash ${PROJECT_BINARY_DIR}/_tessera)
  add_custom_command(OUTPUT ${manual} DEPENDS tessera_cli packaging/manual.py VERBATIM
                     COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/packaging/manual.py
                             $<TARGET_FILE:tessera_cli> ${PROJECT_BINARY_DIR})
  add_custom_target(tessera_manual ALL DEPENDS ${manual})
  install(FILES ${PROJECT_BINARY_DIR}/tessera.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${PROJECT_BINARY_DIR}/tessera.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          RENAME tessera)
  install(FILES ${PROJECT_BINARY_DIR}/_tessera DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endif()
