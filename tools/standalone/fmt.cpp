// fmt, compiled into standalone programs, so that the linker has no use for the system's library:
// what <fmt/format-inl.h> defines, and of its templates what <fmt/format.h> leaves to the library.

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template std::locale locale_ref::get<std::locale>() const;
template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template char decimal_point_impl<char>(locale_ref);
template dragonbox::decimal_fp<float> dragonbox::to_decimal<float>(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal<double>(double) noexcept;
template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                               basic_format_args<FMT_BUFFER_CONTEXT(type_identity_t<char>)>,
                               locale_ref);
#if FMT_VERSION < 100000
template int format_float<double>(double, int, float_specs, buffer<char>&);
#endif

}  // namespace detail
FMT_END_NAMESPACE
