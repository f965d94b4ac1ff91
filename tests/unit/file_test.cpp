// Output files are whole or absent, and every failure names the path and the reason.
#include "sim/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "sim/base/json.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

/// A folder of its own for every test, removed afterwards.
class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "foretrain-file-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    x_folder = pattern;
  }
  void TearDown() override { fs::remove_all(x_folder); }

  std::string in_folder(const std::string& name) const { return (x_folder / name).string(); }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(x_folder), fs::directory_iterator());
  }

 private:
  fs::path x_folder;
};

TEST_F(FileTest, AppearsOnCommitAndNotBefore) {
  const std::string path = in_folder("a.txt");
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file.value().append("one ").ok());
    ASSERT_TRUE(file.value().append("two").ok());
    EXPECT_FALSE(fs::exists(path));
    ASSERT_TRUE(file.value().commit().ok());
  }
  EXPECT_EQ(read_text_file(path).value(), "one two");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileTest, EarlyReturnKeepsTheOldContent) {
  const std::string path = in_folder("a.txt");
  ASSERT_TRUE(write_text_file(path, "old").ok());
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file.value().append("new").ok());
  }
  EXPECT_EQ(read_text_file(path).value(), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileTest, FollowsLinksAndKeepsPermissions) {
  const std::string path = in_folder("a.txt");
  const std::string link = in_folder("link");
  ASSERT_TRUE(write_text_file(path, "old").ok());
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  fs::create_symlink(path, link);
  ASSERT_TRUE(write_text_file(link, "new").ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_text_file(path).value(), "new");
  EXPECT_EQ(static_cast<int>(fs::status(path).permissions()), 0640);
}

TEST_F(FileTest, LargeTextsSurviveCompression) {
  std::string text;
  for (int i = 0; i < 300000; ++i) text += std::to_string(i) + "\n";
  const std::string path = in_folder("a.gz");
  ASSERT_TRUE(write_text_file(path, text).ok());
  EXPECT_LT(fs::file_size(path), text.size() / 2);
  EXPECT_EQ(read_compressed_file(path).value(), text);
  const std::string plain = in_folder("a.txt");
  ASSERT_TRUE(write_text_file(plain, text).ok());
  EXPECT_EQ(read_compressed_file(plain).value(), text);
}

TEST_F(FileTest, EmptyFilesAreFiles) {
  ASSERT_TRUE(write_text_file(in_folder("a"), "").ok());
  ASSERT_TRUE(write_text_file(in_folder("a.gz"), "").ok());
  EXPECT_EQ(read_compressed_file(in_folder("a")).value(), "");
  EXPECT_EQ(read_compressed_file(in_folder("a.gz")).value(), "");
}

TEST_F(FileTest, TruncatedArchiveIsAnError) {
  const std::string path = in_folder("a.gz");
  ASSERT_TRUE(write_text_file(path, std::string(100000, 'x')).ok());
  fs::resize_file(path, fs::file_size(path) / 2);
  const auto read = read_compressed_file(path);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find(path), std::string::npos) << read.error().message;
}

void expect_failure(const std::string& path, const std::string& reason) {
  const Status status = write_text_file(path, "text");
  ASSERT_FALSE(status.ok()) << path;
  EXPECT_EQ(status.error().kind, ErrorKind::kInput);
  EXPECT_NE(status.error().message.find(path), std::string::npos) << status.error().message;
  EXPECT_NE(status.error().message.find(reason), std::string::npos) << status.error().message;
}

TEST_F(FileTest, FailuresNamePathAndReason) {
  expect_failure(in_folder("missing/a.json"), "No such file or directory");
  expect_failure(in_folder(""), "Is a directory");
  expect_failure(in_folder("."), "Is a directory");
  expect_failure(in_folder("missing/"), "Is a directory");
  expect_failure(in_folder(std::string(300, 'n')), "File name too long");
  EXPECT_FALSE(write_text_file("", "text").ok());
  EXPECT_EQ(files(), 0);
  ASSERT_TRUE(write_text_file(in_folder("file"), "").ok());
  expect_failure(in_folder("file/a.json"), "Not a directory");
}

TEST_F(FileTest, FullDeviceIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  expect_failure("/dev/full", "No space left on device");
}

TEST_F(FileTest, FileSizeLimitIsAnErrorAndLeavesNothing) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status plain = write_text_file(in_folder("a.json"), std::string(1 << 20, 'x'));
  std::string noise;
  for (unsigned i = 0; i < 1U << 20; ++i) noise += static_cast<char>((i * i * 2654435761U) >> 24);
  const Status packed = write_text_file(in_folder("a.json.gz"), noise);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  ASSERT_FALSE(plain.ok());
  EXPECT_NE(plain.error().message.find("File too large"), std::string::npos);
  EXPECT_FALSE(packed.ok());
  EXPECT_EQ(files(), 0);
}

TEST_F(FileTest, ErrorsStay) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  auto file = AtomicFile::create("/dev/full");
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(file.value().append(std::string(1 << 20, 'x')).ok());
  EXPECT_FALSE(file.value().append("y").ok());
  EXPECT_FALSE(file.value().commit().ok());
}

TEST_F(FileTest, UnwritableDirectoryIsAnError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::permissions(in_folder(""), fs::perms::owner_read | fs::perms::owner_exec);
  const Status status = write_text_file(in_folder("a.json"), "text");
  fs::permissions(in_folder(""), fs::perms::owner_all);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("Permission denied"), std::string::npos);
}

TEST_F(FileTest, PipesAreWrittenDirectly) {
  const std::string path = in_folder("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(write_text_file(path, "through").ok());
  char text[16] = {};
  EXPECT_EQ(::read(reader, text, sizeof text), 7);
  EXPECT_STREQ(text, "through");
  ::close(reader);
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace foretrain
