// The one registration table of variants.
#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>

namespace secateur {

namespace portable {
extern const Variant variant;
extern const SparseVariant sparse_variant;
}
#ifdef SECATEUR_X86
namespace avx2 {
extern const Variant variant;
extern const SparseVariant sparse_variant;
}
namespace avx512 {
extern const Variant variant;
extern const SparseVariant sparse_variant;
}
#endif
#ifdef SECATEUR_BF16
namespace avx512bf16 {
extern const Variant variant;
}
#endif

std::vector<Choice> supported_variants() {
    std::vector<Choice> choices = {{"portable", &portable::variant, &portable::sparse_variant}};
#ifdef SECATEUR_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) choices.push_back({"avx2", &avx2::variant, &avx2::sparse_variant});
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    if (wide) choices.push_back({"avx512", &avx512::variant, &avx512::sparse_variant});
#endif
#ifdef SECATEUR_BF16
    if (wide && __builtin_cpu_supports("avx512bf16")) choices.push_back({"avx512bf16", &avx512bf16::variant, &avx512::sparse_variant});
#endif
    return choices;
}

Choice choose_variant() {
    const std::vector<Choice> choices = supported_variants();
    const char* wanted = std::getenv("SECATEUR_ISA");
    if (!wanted || !*wanted) return choices.back();
    std::string names;
    for (const Choice& choice : choices) {
        if (choice.name == wanted) return choice;
        names += (names.empty() ? "" : ", ") + choice.name;
    }
    throw std::runtime_error("SECATEUR_ISA=" + std::string(wanted) + " cannot run here; choose from " + names + ".");
}

}    // namespace secateur
