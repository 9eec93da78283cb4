#include "weights/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>

#include "weights/gguf_test_util.h"

namespace pagoda::weights {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufWriter small_file() {
  GgufWriter writer;
  writer.set("general.architecture", "llama")
      .set("a.u8", uint8_t{200})
      .set("a.i16", int16_t{-5})
      .set("a.u64", std::numeric_limits<uint64_t>::max())
      .set("a.f32", 0.5F)
      .set("a.f64", 0.25)
      .set("a.bool", true)
      .set("a.empty", "")
      .set_array("a.strings", std::vector<std::string>{"x", "", "long one"})
      .set_array("a.ints", std::vector<int32_t>{1, -2, 3})
      .set_array("a.flags", std::vector<uint8_t>{1, 0})
      .set_array("a.floats", std::vector<float>{1.5F, -2.5F});
  writer.tensor("w", 0, {2, 3}, std::string(24, '\1')).tensor("q", 2, {1, 64}, std::string(36, '\2'));
  return writer;
}

// The error that parsing gives, as a user would see it.
std::string refusal(const std::string& file) {
  const auto gguf = Gguf::from_bytes(as_bytes(file), "f.gguf");
  if (gguf) return "no error";
  EXPECT_EQ(gguf.error().to_string().find('\n'), std::string::npos);
  return gguf.error().to_string();
}

TEST(Gguf, ReadsMetadataByType) {
  const std::string file = small_file().finish();
  const auto opened = Gguf::from_bytes(as_bytes(file), "f.gguf");
  ASSERT_TRUE(opened) << opened.error().to_string();
  const Gguf& gguf = *opened;
  EXPECT_EQ(gguf.version(), 3U);
  EXPECT_EQ(gguf.metadata().size(), 12U);
  EXPECT_EQ(*gguf.get_string("general.architecture"), "llama");
  EXPECT_EQ(*gguf.get_string("a.empty"), "");
  EXPECT_EQ(*gguf.get_u64("a.u8"), 200U);
  EXPECT_EQ(*gguf.get_i64("a.i16"), -5);
  EXPECT_EQ(*gguf.get_u64("a.u64"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(*gguf.get_f64("a.f32"), 0.5);
  EXPECT_EQ(*gguf.get_f64("a.f64"), 0.25);
  EXPECT_EQ(*gguf.get_f64("a.u8"), 200.0);
  EXPECT_EQ(*gguf.get_bool("a.bool"), true);
  EXPECT_THAT(**gguf.get_array_string("a.strings"), ElementsAre("x", "", "long one"));
  EXPECT_THAT(**gguf.get_array_i64("a.ints"), ElementsAre(1, -2, 3));
  EXPECT_THAT(**gguf.get_array_f32("a.floats"), ElementsAre(1.5F, -2.5F));
  EXPECT_EQ(*gguf.get_u64("missing"), std::nullopt);
  EXPECT_EQ(*gguf.get_array_string("missing"), std::nullopt);
}

TEST(Gguf, WrongTypesAreErrorsThatNameKeyTypeAndPlace) {
  const std::string file = small_file().finish();
  const Gguf gguf = *Gguf::from_bytes(as_bytes(file), "f.gguf");
  const auto error = gguf.get_u64("a.strings").error();
  EXPECT_EQ(error.code, ErrorCode::kBadFile);
  EXPECT_EQ(error.message, "a.strings is an array of string, not an integer from 0 up");
  EXPECT_THAT(error.where, ::testing::MatchesRegex("f.gguf:[0-9]+"));
  EXPECT_FALSE(gguf.get_u64("a.i16"));  // negative
  EXPECT_FALSE(gguf.get_i64("a.u64"));  // too large
  EXPECT_FALSE(gguf.get_u64("a.f32"));
  EXPECT_FALSE(gguf.get_u64("a.bool"));
  EXPECT_FALSE(gguf.get_f64("a.bool"));
  EXPECT_FALSE(gguf.get_bool("a.u8"));
  EXPECT_FALSE(gguf.get_string("a.u8"));
  EXPECT_FALSE(gguf.get_array_i64("a.floats"));
  EXPECT_FALSE(gguf.get_array_i64("a.strings"));
  EXPECT_FALSE(gguf.get_array_f32("a.ints"));
  EXPECT_FALSE(gguf.get_array_string("a.empty"));
}

TEST(Gguf, FindsTensorsWithPapersShapes) {
  const std::string file = small_file().finish();
  const Gguf gguf = *Gguf::from_bytes(as_bytes(file), "f.gguf");
  ASSERT_EQ(gguf.tensors().size(), 2U);
  const TensorInfo* w = gguf.find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->dtype, tensor::DType::kF32);
  EXPECT_THAT(w->shape(), ElementsAre(2, 3));
  EXPECT_EQ(w->rows(), 2);
  EXPECT_EQ(w->cols(), 3);
  EXPECT_EQ(shape_string(*w), "[2, 3]");
  EXPECT_EQ(w->bytes.size(), 24U);
  EXPECT_EQ(w->bytes[0], std::byte{1});
  const TensorInfo* q = gguf.find("q");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->offset % 32, 0U);
  EXPECT_EQ(q->bytes.size(), 36U);
  EXPECT_EQ(q->bytes[35], std::byte{2});
  EXPECT_EQ(gguf.find("nobody"), nullptr);
  gguf.drop(*w, w->bytes.size());  // nothing mapped: no effect
}

TEST(Gguf, Version2AndOtherAlignmentsAreRead) {
  GgufWriter writer;
  writer.alignment(64).tensor("a", 24, {3}, "abc").tensor("b", 24, {3}, "def");
  const std::string file = writer.finish(2);
  const auto gguf = Gguf::from_bytes(as_bytes(file), "f.gguf");
  ASSERT_TRUE(gguf) << gguf.error().to_string();
  EXPECT_EQ(gguf->find("b")->offset % 64, 0U);
  EXPECT_FALSE(gguf->find("b")->dtype.has_value());  // I8: known, not computed with
  EXPECT_EQ(gguf->find("b")->bytes.size(), 3U);
}

TEST(Gguf, UnknownTensorTypesKeepTheirNumber) {
  GgufWriter writer;
  writer.tensor_at("odd", 77, {5, 7}, 0);
  const std::string file = writer.finish();
  const auto gguf = Gguf::from_bytes(as_bytes(file), "f.gguf");
  ASSERT_TRUE(gguf) << gguf.error().to_string();
  EXPECT_EQ(gguf->find("odd")->gguf_type, 77U);
  EXPECT_TRUE(gguf->find("odd")->bytes.empty());
}

TEST(Gguf, EveryTruncationIsAnErrorAndNeverACrash) {
  const std::string file = small_file().finish();
  for (size_t size = 0; size < file.size(); ++size) {
    const std::string cut = file.substr(0, size);
    const auto gguf = Gguf::from_bytes(as_bytes(cut), "f.gguf");
    ASSERT_FALSE(gguf) << size;
    ASSERT_EQ(gguf.error().code, ErrorCode::kBadFile) << size;
    ASSERT_THAT(gguf.error().where, ::testing::StartsWith("f.gguf:")) << size;
  }
  EXPECT_EQ(refusal(file), "no error");
}

TEST(Gguf, EveryByteChangedParsesOrFailsInOneLine) {
  std::string file = small_file().finish();
  for (size_t i = 0; i < file.size(); ++i) {
    const char kept = file[i];
    for (const int change : {0x01, 0x80, 0xFF}) {
      file[i] = static_cast<char>(kept ^ change);
      refusal(file);
    }
    file[i] = kept;
  }
}

TEST(Gguf, ForeignFilesAreNamed) {
  const std::string zip = "PK\3\4 a zip file";
  const Error error = Gguf::from_bytes(as_bytes(zip), "f.zip").error();
  EXPECT_EQ(error.to_string(),
            "not a GGUF file: it starts with 0x04034b50, not \"GGUF\"; a model converted to GGUF is wanted (f.zip)");
  std::string swapped = small_file().finish();
  std::swap(swapped[4], swapped[7]);
  EXPECT_THAT(refusal(swapped), HasSubstr("big-endian"));
  EXPECT_THAT(refusal("FUGG"), HasSubstr("big-endian"));
  EXPECT_THAT(refusal(small_file().finish(1)), HasSubstr("version 1 is not supported"));
  EXPECT_THAT(refusal(small_file().finish(4)), HasSubstr("version 4 is not 2 or 3"));
}

TEST(Gguf, CountsBeyondTheFileAreRefusedBeforeAllocating) {
  std::string file = small_file().finish();
  file[15] = 0x10;  // tensor count
  EXPECT_THAT(refusal(file), HasSubstr("tensors, which do not fit a file of"));
  file = small_file().finish();
  file[22] = 1;  // metadata count
  EXPECT_THAT(refusal(file), HasSubstr("metadata entries, which do not fit"));
  const std::string huge_count = std::string("\4\0\0\0", 4) + std::string(8, '\x7F');
  EXPECT_THAT(refusal(GgufWriter().set_raw("k", 9, huge_count).finish()), HasSubstr("elements of uint32, but only"));
  const std::string many_strings =
      std::string("\x8\0\0\0", 4) + std::string("\2\0\0\0\0\0\0\0", 8) + std::string(16, '\0');
  EXPECT_EQ(refusal(GgufWriter().set_raw("k", 9, many_strings).finish()), "no error");
  EXPECT_THAT(refusal(GgufWriter().set_raw("k", 8, std::string(8, '\x7F')).finish()), HasSubstr("bytes long"));
}

TEST(Gguf, MalformedMetadataIsRefused) {
  EXPECT_THAT(refusal(GgufWriter().set("k", 1U).set("k", 2U).finish()), HasSubstr("k appears twice"));
  EXPECT_THAT(refusal(GgufWriter().set("", 1U).finish()), HasSubstr("is empty"));
  EXPECT_THAT(refusal(GgufWriter().set_raw("k", 99, "padding").finish()), HasSubstr("99, which GGUF does not define"));
  EXPECT_THAT(refusal(GgufWriter().set_raw("k", 7, "\2").finish()), HasSubstr("neither 0 nor 1"));
  const std::string nested = std::string("\x9\0\0\0", 4) + std::string(12, '\0');
  EXPECT_THAT(refusal(GgufWriter().set_raw("k", 9, nested).finish()), HasSubstr("array of arrays"));
  EXPECT_THAT(refusal(GgufWriter().set("a\nb", 1U).set("a\nb", 1U).finish()), HasSubstr("a?b appears twice"));
  for (const uint32_t alignment : {0U, 3U, 4U, 1U << 31}) {
    EXPECT_THAT(refusal(GgufWriter().set("general.alignment", alignment).finish()), HasSubstr("power of two"));
  }
  EXPECT_THAT(refusal(GgufWriter().set("general.alignment", uint64_t{32}).finish()), HasSubstr("not uint32"));
}

TEST(Gguf, MalformedTensorsAreRefused) {
  const std::string data(64, 'd');
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 0, {4}, data).tensor("t", 0, {4}, data).finish()),
              HasSubstr("t appears twice"));
  EXPECT_THAT(refusal(GgufWriter().tensor("", 0, {4}, data).finish()), HasSubstr("no name"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 0, {}, data).finish()), HasSubstr("0 dimensions"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 0, {1, 1, 1, 1, 1}, data).finish()), HasSubstr("5 dimensions"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 0, {0, 4}, data).finish()), HasSubstr("dimension 1 of tensor t is 0"));
  constexpr uint64_t kBig = uint64_t{1} << 40;
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 0, {kBig, kBig}, data).finish()), HasSubstr("dimension 1"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 0, {uint64_t{1} << 60, 1}, data).finish()), HasSubstr("takes"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 28, {uint64_t{1} << 62}, data).finish()), HasSubstr("too large"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 12, {1, 128}, data).finish()), HasSubstr("not a multiple of the 256"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 0, {17}, data).finish()), HasSubstr("cut short"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 0, {1}, data).tensor_at("u", 0, {1}, 8).finish()),
              HasSubstr("not a multiple of the alignment 32"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 0, {16}, data).tensor_at("u", 0, {1}, 32).finish()),
              HasSubstr("overlap"));
  EXPECT_THAT(refusal(GgufWriter().tensor("t", 0, {1}, data).tensor_at("u", 0, {1}, ~uint64_t{31}).finish()),
              HasSubstr("cut short"));
}

// Split models.

class GgufSplit : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(int number) const { return (folder_ / fmt::format("m-{:05}-of-00002.gguf", number)).string(); }
  static GgufWriter part(uint16_t number, uint16_t count, int32_t tensors) {
    GgufWriter writer;
    writer.set("split.no", number).set("split.count", count).set("split.tensors.count", tensors);
    return writer;
  }
  std::string refusal_of(const std::string& file) const {
    const auto gguf = Gguf::open(file);
    return gguf ? "no error" : gguf.error().to_string();
  }

  std::filesystem::path folder_;
};

TEST_F(GgufSplit, OpeningTheFirstOpensAll) {
  write_file(path(1), part(0, 2, 2).set("x", "first").tensor("a", 24, {3}, "abc").finish());
  write_file(path(2), part(1, 2, 2).set("x", "second").tensor("b", 24, {3}, "def").finish());
  auto opened = Gguf::open(path(1));
  ASSERT_TRUE(opened) << opened.error().to_string();
  const Gguf gguf = std::move(*opened);
  EXPECT_EQ(gguf.n_parts(), 2U);
  EXPECT_EQ(*gguf.get_string("x"), "first");
  ASSERT_NE(gguf.find("b"), nullptr);
  EXPECT_EQ(gguf.find("b")->part, 1);
  EXPECT_EQ(gguf.find("b")->bytes[0], std::byte{'d'});
  gguf.drop(*gguf.find("b"), gguf.find("b")->bytes.size());
  EXPECT_EQ(gguf.find("b")->bytes[2], std::byte{'f'});
  EXPECT_EQ(gguf.file_bytes(), std::filesystem::file_size(path(1)) + std::filesystem::file_size(path(2)));
}

TEST_F(GgufSplit, InconsistentPartsAreRefused) {
  write_file(path(1), part(0, 2, 2).tensor("a", 24, {3}, "abc").finish());
  EXPECT_THAT(refusal_of(path(1)), HasSubstr("m-00002-of-00002.gguf"));  // missing
  write_file(path(2), part(0, 2, 2).tensor("b", 24, {3}, "def").finish());
  EXPECT_THAT(refusal_of(path(1)), HasSubstr("not part 2 of 2"));
  write_file(path(2), part(1, 3, 2).tensor("b", 24, {3}, "def").finish());
  EXPECT_THAT(refusal_of(path(1)), HasSubstr("not part 2 of 2"));
  write_file(path(2), part(1, 2, 2).tensor("a", 24, {3}, "def").finish());
  EXPECT_THAT(refusal_of(path(1)), HasSubstr("tensor a is in two parts"));
  write_file(path(2), part(1, 2, 2).finish());
  EXPECT_THAT(refusal_of(path(1)), HasSubstr("2 tensors are promised, 1 are there"));
  write_file(path(2), part(1, 2, 2).tensor("b", 24, {3}, "def").finish());
  EXPECT_EQ(refusal_of(path(1)), "no error");
  EXPECT_THAT(refusal_of(path(2)), HasSubstr("not the first part"));
  const std::string renamed = (folder_ / "renamed.gguf").string();
  write_file(renamed, part(0, 2, 2).tensor("a", 24, {3}, "abc").finish());
  EXPECT_THAT(refusal_of(renamed), HasSubstr("must be called *-00001-of-00002.gguf"));
  EXPECT_THAT(refusal(part(0, 2, 1).finish()), HasSubstr("cannot stand alone"));
}

TEST_F(GgufSplit, MissingAndEmptyFiles) {
  EXPECT_EQ(Gguf::open(folder_ / "none.gguf").error().code, ErrorCode::kNotFound);
  write_file(path(1), "");
  EXPECT_EQ(Gguf::open(path(1)).error().code, ErrorCode::kBadFile);
  EXPECT_FALSE(Gguf::open(folder_));
}

}  // namespace
}  // namespace pagoda::weights
