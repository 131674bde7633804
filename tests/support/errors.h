#pragma once
// Looking into exceptions that threads have thrown.

#include <exception>
#include <string>

namespace lockstep::test {

/// `what()` of the exception; empty for none.
inline std::string text_of(const std::exception_ptr& thrown) {
  if (!thrown) return "";
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "not a std::exception";
  }
}

/// Whether the exception is a `Type`.
template <typename Type>
bool is_a(const std::exception_ptr& thrown) {
  if (!thrown) return false;
  try {
    std::rethrow_exception(thrown);
  } catch (const Type&) {
    return true;
  } catch (...) {
    return false;
  }
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace lockstep::test
