// Up to Boost 1.85, Process v2 has to be compiled by its user: here, once. Later it is a library of its own.
#include <boost/version.hpp>
#if BOOST_VERSION < 108600
#include <boost/asio/detail/throw_error.hpp>
#include <boost/process/v2/src.hpp>
#endif
