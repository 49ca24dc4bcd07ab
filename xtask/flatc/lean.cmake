# Read by cmake before the flatbuffers project (as its "toolchain file"): of that project only the compiler is
# wanted here, and its own tests take longer to compile than the compiler does.
set(FLATBUFFERS_BUILD_TESTS OFF CACHE BOOL "" FORCE)
set(FLATBUFFERS_BUILD_FLATHASH OFF CACHE BOOL "" FORCE)
