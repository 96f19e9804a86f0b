// An MPI library by its name alone: what ddrun sees in a program that is linked with one.
extern "C" int MPI_Init(int* argc, char*** argv) { return argc != nullptr && argv != nullptr ? 0 : 1; }
