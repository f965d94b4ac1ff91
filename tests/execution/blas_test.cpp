// Do all libraries multiply alike, and is what is missing refused by name?
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "executor/kernels.h"
#include "executor/onednn_module.h"
#include "executor/random.h"

namespace foretrain {
namespace {

std::vector<float> numbers(std::int64_t count, std::uint64_t key) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back(static_cast<float>(uniform_at(key, i)) - 0.5F);
  }
  return out;
}

/// Largest difference from the sum in double, over sqrt(k).
double worst_error(Multiply library, Matrices<float> x, std::uint64_t key) {
  const std::int64_t rows_a = x.transpose_a ? x.k : x.m;
  const std::int64_t rows_b = x.transpose_b ? x.n : x.k;
  x.lda = (x.transpose_a ? x.m : x.k) + 3;
  x.ldb = (x.transpose_b ? x.k : x.n) + 1;
  x.ldc = x.n + 2;
  const std::vector<float> a = numbers(rows_a * x.lda, key);
  const std::vector<float> b = numbers(rows_b * x.ldb, key + 1);
  const std::vector<float> before = numbers(x.m * x.ldc, key + 2);
  std::vector<float> c = before;
  if (x.beta == 0) std::fill(c.begin(), c.end(), std::nanf(""));
  x.a = a.data();
  x.b = b.data();
  x.c = c.data();
  library(x);
  double worst = 0;
  for (std::int64_t i = 0; i < x.m; ++i) {
    for (std::int64_t j = 0; j < x.n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < x.k; ++l) {
        sum += static_cast<double>(x.transpose_a ? x.a[l * x.lda + i] : x.a[i * x.lda + l]) *
               static_cast<double>(x.transpose_b ? x.b[j * x.ldb + l] : x.b[l * x.ldb + j]);
      }
      const auto at = static_cast<std::size_t>(i * x.ldc + j);
      const double expected = x.alpha * sum + (x.beta == 0 ? 0 : x.beta * before[at]);
      const double error = std::abs(static_cast<double>(c[at]) - expected);
      worst = std::isnan(error) ? 1e9 : std::max(worst, error);
    }
  }
  return worst / std::sqrt(static_cast<double>(x.k));
}

void expect_products(Multiply library, double tolerance) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Matrices<float> x;
    const auto draw = [seed](std::int64_t i, double most) {
      return static_cast<std::int64_t>(uniform_at(seed, i) * most);
    };
    x.transpose_a = draw(0, 2) == 1;
    x.transpose_b = draw(1, 2) == 1;
    x.m = 1 + draw(2, 40);
    x.n = 1 + draw(3, 40);
    x.k = 1 + draw(4, 90);
    x.alpha = seed % 3 == 0 ? 0.25F : 1.0F;
    x.beta = seed % 2 == 0 ? 0.0F : 1.0F;
    EXPECT_LT(worst_error(library, x, 77 * seed), tolerance) << "seed " << seed;
  }
}

TEST(Blas, EveryLibraryMultiplies) {
  expect_products(multiply<float>, 1e-6);
  ASSERT_TRUE(choose_blas("plain").ok());
  EXPECT_EQ(blas_name(), "plain loops");
  expect_products(multiply<float>, 1e-6);
  ASSERT_TRUE(choose_blas("").ok());
  const Status unknown = choose_blas("mkl");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("accepted: openblas, onednn"), std::string::npos);
}

constexpr int kSkipped = 77;

/// In a process of its own, which ends without looking for leaks: the leak checker's walk through
/// thread-local storage can crash in oneDNN's, which is loaded at run time. False where the body
/// left with `kSkipped`.
template <typename Body>
bool passes_apart(Body body) {
  int code = 0;
  EXPECT_EXIT(
      {
        body();
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      [&code](int status) {
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        return code == 0 || code == kSkipped;
      },
      "");
  return code != kSkipped;
}

TEST(Blas, OneDnn) {
  const bool there = passes_apart([] {
    if (!open_onednn().ok()) std::_Exit(kSkipped);
    ASSERT_TRUE(choose_blas("onednn").ok());
    EXPECT_EQ(blas_name().substr(0, 7), "oneDNN ");
    expect_products(multiply<float>, 1e-6);
    ASSERT_TRUE(choose_blas("").ok());
  });
  if (!there) GTEST_SKIP() << "no oneDNN here";
}

// bf16 has 8 bits: operands of up to 1/2 are off by up to 2^-10, products of k such by
// sqrt(k) 2^-11 and little more. It is refused where the processor would emulate it.
TEST(Blas, OneDnnBf16) {
  const bool there = passes_apart([] {
    const Result<OneDnn> onednn = open_onednn();
    if (!onednn.ok()) std::_Exit(kSkipped);
    const Status chosen = choose_blas("onednn-bf16");
    EXPECT_EQ(chosen.ok(), onednn.value().has_bf16);
    if (!chosen.ok()) {
      EXPECT_NE(chosen.error().message.find("neither AVX512_BF16 nor AMX-BF16"), std::string::npos);
      EXPECT_EQ(blas_name().find("bf16"), std::string::npos);
    }
    ASSERT_TRUE(choose_blas("").ok());
    if (onednn.value().multiply_bf16 == nullptr) std::_Exit(kSkipped);
    expect_products(onednn.value().multiply_bf16, 4e-3);
  });
  if (!there) GTEST_SKIP() << "oneDNN computes no bf16 here";
}

}  // namespace
}  // namespace foretrain
