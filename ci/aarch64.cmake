# Toolchain of CMake for aarch64 on a Debian of another architecture: g++-aarch64-linux-gnu, and libraries of arm64 beside
# those of the machine (multiarch). ci/aarch64 and ci/wheel have a root that is made so.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
