# rust/textshim: built by cargo from its committed lock file into a static library with a small C ABI (textshim.h).
find_program(CARGO cargo REQUIRED HINTS $ENV{HOME}/.cargo/bin)
set(TEXTSHIM_DIR ${CMAKE_SOURCE_DIR}/rust/textshim)
set(TEXTSHIM_LIB ${CMAKE_BINARY_DIR}/textshim/release/libtextshim.a)
file(GLOB TEXTSHIM_SOURCES CONFIGURE_DEPENDS ${TEXTSHIM_DIR}/src/*.rs)
add_custom_command(
  OUTPUT ${TEXTSHIM_LIB}
  COMMAND ${CARGO} build --quiet --locked --release --manifest-path ${TEXTSHIM_DIR}/Cargo.toml --target-dir ${CMAKE_BINARY_DIR}/textshim
  DEPENDS ${TEXTSHIM_SOURCES} ${TEXTSHIM_DIR}/Cargo.toml ${TEXTSHIM_DIR}/Cargo.lock
  COMMENT "cargo build textshim"
  VERBATIM)
add_custom_target(textshim_build DEPENDS ${TEXTSHIM_LIB})
add_library(textshim STATIC IMPORTED)
set_target_properties(textshim PROPERTIES IMPORTED_LOCATION ${TEXTSHIM_LIB} INTERFACE_INCLUDE_DIRECTORIES ${TEXTSHIM_DIR})
add_dependencies(textshim textshim_build)
target_link_libraries(textshim INTERFACE Threads::Threads dl m)
