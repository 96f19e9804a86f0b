// An empty MPI library: ddrun only looks at the name that a program is linked with.
extern "C" int MPI_Init(int* argc, char*** argv) { return argc != nullptr && argv != nullptr ? 0 : 1; }
