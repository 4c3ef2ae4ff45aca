#pragma once
// Whom the pages that a browser shows may ask. A browser on this machine reaches addresses that are
// for this machine only, and a page of any site can make it ask there: by a form or a script whose
// request says where it comes from (Origin, RFC 6454, section 7), or under a name of its own that
// its owner lets point here (DNS rebinding), where the browser takes us for that site and lets the
// page read the answers.

#include <string>
#include <string_view>

namespace reynard::serving {

// Whether only programs of this machine reach who listens there: 127.0.0.0/8, ::1, localhost.
bool is_for_this_machine_only(std::string_view address);

// Why a request is not answered; empty: it is.
//   origin, host   of its head; empty: none, as programs that are no browsers send
//   address        that this server listens at
std::string refused_origin(std::string_view origin,
                           std::string_view host,
                           std::string_view address);

}  // namespace reynard::serving
