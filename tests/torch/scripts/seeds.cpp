// The first number of a generator that is started with DDRUN_SEED.
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

int main() {
  std::mt19937_64 engine(std::stoull(std::getenv("DDRUN_SEED")));
  std::cout << engine() << std::endl;
}
