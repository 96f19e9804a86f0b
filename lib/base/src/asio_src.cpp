// The bodies of Boost.Asio, once (BOOST_ASIO_SEPARATE_COMPILATION): every other file gets by with declarations.
#include <boost/asio/impl/src.hpp>
