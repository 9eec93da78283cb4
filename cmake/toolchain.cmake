# Compiler flags for every target. The numbers Pagoda computes must be the same bits on every x86 machine, so the
# baseline is plain x86-64: kernels open their own target regions (kernels/*/begin.h) and nothing else may use more.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")

file(RELATIVE_PATH source_from_build ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})  # messages name src/..., wherever the build is
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/= -ffile-prefix-map=${source_from_build}=)
add_compile_options(-Wall -Wextra -Werror -Wno-psabi -ffp-contract=off -fno-math-errno -fno-omit-frame-pointer)
include_directories(${CMAKE_SOURCE_DIR}/src)

find_program(CCACHE ccache)
if(CCACHE)  # paths below the source folder are cached as relative ones, so another clone or build folder finds them too
  set(ccache_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${ccache_launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ccache_launcher})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wno-unknown-pragmas)  # GCC's target regions (kernels/*/begin.h)
endif()
if(PAGODA_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized)  # GCC 12 sees ghosts in instrumented code
    if(PAGODA_SANITIZE STREQUAL "thread")
      add_compile_options(-Wno-tsan)  # Asio's fences, which the sanitizer cannot see; Asio's locks it does
    endif()
  endif()
  add_compile_options(-fsanitize=${PAGODA_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PAGODA_SANITIZE})
endif()
