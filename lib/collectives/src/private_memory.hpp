#pragma once

#include "ddrun/collectives/private_memory.hpp"
