# rust/textshim: built by cargo from its committed lock file into a static library with a small C ABI (textshim.h). Every preset
# links the same one, so it is built once, in build/textshim.
execute_process(
  COMMAND ${CMAKE_SOURCE_DIR}/scripts/find_rust
  OUTPUT_VARIABLE RUST_TOOLS OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE " " ";" RUST_TOOLS ${RUST_TOOLS})
list(POP_FRONT RUST_TOOLS CARGO RUSTC)
set(TEXTSHIM_DIR ${CMAKE_SOURCE_DIR}/rust/textshim)
set(TEXTSHIM_TARGET ${CMAKE_SOURCE_DIR}/build/textshim)
set(TEXTSHIM_LIB ${TEXTSHIM_TARGET}/release/libtextshim.a)
file(GLOB TEXTSHIM_SOURCES CONFIGURE_DEPENDS ${TEXTSHIM_DIR}/src/*.rs)
add_custom_command(
  OUTPUT ${TEXTSHIM_LIB}
  COMMAND ${CMAKE_COMMAND} -E env RUSTC=${RUSTC} ${CARGO} build --quiet --locked --release
          --manifest-path ${TEXTSHIM_DIR}/Cargo.toml --target-dir ${TEXTSHIM_TARGET}
  COMMAND ${CMAKE_COMMAND} -E touch_nocreate ${TEXTSHIM_LIB}
  DEPENDS ${TEXTSHIM_SOURCES} ${TEXTSHIM_DIR}/Cargo.toml ${TEXTSHIM_DIR}/Cargo.lock
  COMMENT "cargo build textshim"
  VERBATIM)
add_custom_target(textshim_build DEPENDS ${TEXTSHIM_LIB})
add_library(textshim STATIC IMPORTED)
set_target_properties(textshim PROPERTIES IMPORTED_LOCATION ${TEXTSHIM_LIB} INTERFACE_INCLUDE_DIRECTORIES ${TEXTSHIM_DIR})
add_dependencies(textshim textshim_build)
target_link_libraries(textshim INTERFACE Threads::Threads dl m)
