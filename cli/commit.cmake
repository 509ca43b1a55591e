# commit.cmake: writes OUTPUT, a header with the commit that SOURCE is at, "+" behind it where files differ from it. Run at
# every build; the file changes only when the commit does. Without git, or outside of a clone, the commit is what the
# environment has in TESSERA_COMMIT, else "unknown".
find_package(Git QUIET)
set(commit unknown)
if(DEFINED ENV{TESSERA_COMMIT})
  set(commit "$ENV{TESSERA_COMMIT}")
endif()
if(GIT_FOUND AND EXISTS "${SOURCE}/.git")
  execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${SOURCE}" describe --always --abbrev=12 --exclude=* --dirty=+
                  OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit "${described}")
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#define TESSERA_COMMIT \"${commit}\"\n")
