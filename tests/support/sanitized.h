// Is this a build with a sanitizer? There everything takes ten times as long: tests of many drawn
// cases take fewer.
#pragma once

namespace foretrain {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// `all` of a release build, `few` under a sanitizer.
constexpr int cases(int all, int few) { return kSanitized ? few : all; }

}  // namespace foretrain
