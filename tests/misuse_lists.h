// misuse_lists.h -- lists that must not compile: every op with every kind of wrong argument, and each option with wrong values. All
// lists are compiled as one file, with one list on each line, and the first error of a line must contain the expected text. Lists whose
// mistake is between ops are in tests/fail/*.c, one file each.
#ifndef TESTS_MISUSE_LISTS_H
#define TESTS_MISUSE_LISTS_H

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace misuse {

struct list {
    std::string dtype, ops, expect; // expect "": it must compile
};

// A valid op, and the ops that a list needs before and behind it.
struct sound {
    const char *kind;
    std::vector<std::string> shapes;
    std::vector<std::pair<std::string, std::string>> options; // name, and a value of a wrong type or range
    const char *before, *behind;
};
inline const std::vector<sound> &sound_ops() {
    static const std::vector<sound> all = {
        {"linear", {"16", "16"}, {}, "", ""}, {"tied_linear", {"16", "16"}, {}, "", ""}, {"bias", {"16"}, {}, "", ""},
        {"layernorm", {"16"}, {{"eps", "\"x\""}, {"eps", "-1.0f"}}, "", ""}, {"rmsnorm", {"16"}, {{"eps", "\"x\""}, {"eps", "-1.0f"}}, "", ""}, {"l2norm", {"16"}, {{"eps", "\"x\""}, {"eps", "-1.0f"}}, "", ""},
        {"layernorm1p", {"16"}, {{"eps", "\"x\""}}, "", ""}, {"rmsnorm1p", {"16"}, {{"eps", "\"x\""}}, "", ""},
        {"gelu", {}, {}, "", "(bias, z, 16)"}, {"gelu_erf", {}, {}, "", "(bias, z, 16)"}, {"qgelu", {}, {}, "", "(bias, z, 16)"}, {"relu", {}, {}, "", "(bias, z, 16)"}, {"srelu", {}, {}, "", "(bias, z, 16)"}, {"silu", {}, {}, "", "(bias, z, 16)"},
        {"glu", {}, {}, "(bias, y, 32)", ""}, {"geglu", {}, {}, "(bias, y, 32)", ""}, {"qgeglu", {}, {}, "(bias, y, 32)", ""}, {"reglu", {}, {}, "(bias, y, 32)", ""}, {"sreglu", {}, {}, "(bias, y, 32)", ""}, {"swiglu", {}, {}, "(bias, y, 32)", ""},
        {"dropout", {"0.1f"}, {}, "", "(bias, z, 16)"}, {"scale", {"0.5f"}, {}, "", "(bias, z, 16)"},
        {"fork", {}, {}, "", "(bias, z, 16), (add, a)"}, {"input", {"16"}, {{"dtype", "f62"}, {"dtype", "2"}}, "", "(bias, z, 16), (add, a)"}, {"output", {}, {}, "", "(bias, z, 16)"},
        {"rope", {"2", "1", "4"}, {{"rotary_dim", "3"}, {"rotary_dim", "1.5f"}, {"interleaved", "\"x\""}, {"interleaved", "2"}, {"rotary_dim", "-2"}, {"first", "5"}, {"first", "1"}, {"first", "-1"}, {"base", "\"x\""}, {"base", "-1.0f"}}, "(bias, y, 16)", ""},
        {"head_norm", {"2", "1", "4"}, {{"eps", "\"x\""}, {"eps", "-1.0f"}}, "(bias, y, 16)", ""}, {"head_norm1p", {"2", "1", "4"}, {{"eps", "\"x\""}}, "(bias, y, 16)", ""},
        {"attention", {"2", "2", "4"}, {{"causal", "2"}, {"causal", "1.5f"}, {"scale", "\"x\""}, {"scale", "-1.0f"}, {"varlen", "2"}, {"alibi", "2"}, {"sinks", "2"}, {"bias", "2"}, {"bias_queries", "4"}, {"relative_bias", "1"}, {"max_logit", "2"}, {"tied", "1"}, {"values_in_keys", "2"}, {"values_in_keys", "1"}}, "(bias, y, 24)", ""},
        {"cross_attention", {"k", "2", "1", "4"}, {{"causal", "2"}, {"causal", "1.5f"}, {"scale", "\"x\""}, {"scale", "-1.0f"}, {"alibi", "2"}, {"sinks", "2"}, {"bias", "2"}, {"max_logit", "2"}}, "(bias, y, 8), (input, k, 8)", ""},
        {"embedding", {"32", "16"}, {}, "", "(bias, z, 16)"}, {"positions", {"32", "16"}, {}, "", ""}, {"last_token", {}, {}, "(bias, y, 16)", ""}, {"cross_entropy", {"16"}, {}, "", ""}, {"sample", {"16"}, {}, "", ""},
        {"router", {"16", "4"}, {{"top_k", "0"}, {"top_k", "5"}, {"top_k", "1.5f"}, {"score", "hardmax"}, {"renormalise", "1.5f"}, {"factor", "\"x\""}, {"choice_bias", "2"}, {"bias", "2"}, {"weigh", "both"}, {"groups", "3"}, {"groups_kept", "2"}, {"aux_loss", "\"x\""}, {"capacity", "\"x\""}, {"z_loss", "\"x\""}}, "", "(combine, a)"},
        {"head_linear", {"2", "8", "16"}, {{"keep", "4"}, {"keep", "-8"}, {"keep", "1.5f"}, {"transposed", "2"}}, "(bias, y, 16)", ""},
        {"expert_linear", {"16", "16", "4"}, {}, "(router, r, 16, 4)", "(combine, r)"}, {"expert_bias", {"16", "4"}, {}, "(router, r, 16, 4)", "(combine, r)"}, {"combine", {}, {}, "(router, a, 16, 4)", ""}};
    return all;
}

inline std::string op_text(const sound &s, const std::vector<std::string> &arguments, const std::string &name = "a") {
    std::string text = std::string("(") + s.kind + (name.empty() ? "" : ", " + name);
    for (const std::string &a : arguments) text += ", " + a;
    return text + ")";
}
inline std::string around(const sound &s, const std::string &op) {
    std::string text = *s.before ? std::string(s.before) + ", " + op : op;
    return *s.behind ? text + ", " + s.behind : text;
}
inline std::vector<list> wrong_lists() {
    std::vector<list> all;
    for (const sound &s : sound_ops()) {
        const std::string called = std::string("(") + s.kind + ", a)";
        const auto add = [&](const std::vector<std::string> &arguments, const std::string &expect) { all.push_back({"f32", around(s, op_text(s, arguments)), expect}); };
        const auto with = [&](const std::string &more) {
            std::vector<std::string> v = s.shapes;
            v.push_back(more);
            return v;
        };
        add(s.shapes, "");
        all.push_back({"f32", around(s, std::string("(") + s.kind + ")"), std::string("(") + s.kind + ") has no name"});
        all.push_back({"f32", around(s, std::string(s.kind)), "is no op"});
        all.push_back({"f32", around(s, op_text(s, s.shapes)) + ", " + op_text(s, s.shapes), "has the name of an op before it"});
        add(with("(no_such_option, 1)"), called + " takes no option no_such_option");
        add(with("7, 7, 7, 7, 7, 7"), called + " has more arguments than its kind takes");
        for (const auto &o : s.options) add(with("(" + o.first + ", " + o.second + ")"), o.first == "dtype" ? "TE_" : strstr("eps scale base rotary_dim interleaved causal", o.first.c_str()) && o.second[0] != '-' && o.second != "2" && o.second != "3" ? called + ": the option " + o.first + " takes" : s.kind);
        for (size_t k = 0; k < s.shapes.size(); k++) {
            const bool width = !strstr("dropout scale", s.kind);
            for (const char *bad : {"0", "-16", "\"16\"", "no_such_name"}) {
                if (!width && (*bad == '0' || (*bad == '-' && !strcmp(s.kind, "scale")))) continue; // valid values of these ops
                std::vector<std::string> v = s.shapes;
                // a new name each time, because gcc reports an unknown name only once
                v[k] = *bad == 'n' ? bad + std::to_string(all.size()) : bad;
                add(v, *bad == '"' ? "*" : *bad == 'n' ? "no_such_name" : strstr(s.kind, "attention") || s.kind == std::string("rope") ? "*" : "te: ");
            }
            if (width) { // with one shape too few
                std::vector<std::string> v(s.shapes.begin(), s.shapes.begin() + (long)k);
                add(v, "*");
            }
        }
    }
    const struct { const char *dtype, *expect; } dtypes[] = {
        {"f64", "f64"}, {"int", "int"}, {"e4m3", "FP8 is a recipe"}, {"e5m2", "FP8 is a recipe"}, {"(f32, (residual, f63))", "f63"}, {"(f32, (residual, 1))", "1"}, {"(f16, (residual, bf16))", "residual stream"}, {"(f32, (in, half))", "half"},
        {"(f32, (out, 3))", "3"}, {"(f32, (recipe, fp4))", "fp4"}, {"(f32, (width, 8))", "does not take the width"}, {"(f32, (width, 1.5))", "takes an integer"}, {"(f32, (width, \"16\"))", "takes an integer"}, {"(f32, (width, 0))", "te: "},
        {"(f32, (width, -16))", "te: "}, {"(f32, (residua, f32))", "takes no option residua"}, {"(f32, 16)", "more arguments"}};
    for (const auto &d : dtypes) all.push_back({d.dtype, "(bias, a, 16)", d.expect});
    for (const char *good : {"bf16", "f16", "(bf16, (residual, f32))", "(bf16, (in, f32), (out, f16))", "(f32, (width, 16))"}) all.push_back({good, "(bias, a, 16)", ""});
    return all;
}

struct compiled {
    std::string compiler;
    int refused = 0, fine = 0;
    std::vector<std::string> wrong; // lists with the wrong result, and the compiler's message
};
// Compiles all lists by `compiler`, list i on line 10 + i of a source file.
inline compiled compile_lists(const std::string &compiler, const std::vector<list> &all, const std::string &folder) {
    compiled result;
    const std::string source = folder + "/lists.c", log = folder + "/log";
    std::ofstream file(source);
    file << "#include \"te/te.h\"\n#include \"te/infer.h\"\n#include \"te/moe.h\"\n";
    for (int i = 4; i < 10; i++) file << "\n";
    const auto checks_kernels = [](const std::string &ops) { return ops.find("(scale, ") == 0 || ops.find("(rope, ") != std::string::npos || ops.find("(attention, ") != std::string::npos; };
    for (size_t i = 0; i < all.size(); i++) file << (checks_kernels(all[i].ops) ? "TE_SEQUENTIAL(list" : "TE_DECLARE(list") << i << ", " << all[i].dtype << ", " << all[i].ops << ")\n";
    file.close();
    result.compiler = compiler;
    const std::string flags = compiler[0] == 'c' ? " -ferror-limit=0 -fmacro-backtrace-limit=1" : " -fmax-errors=0 -ftrack-macro-expansion=0";
    const int code = std::system((compiler + flags + " -w -DTE_ALL_ERRORS -I. -fsyntax-only " + source + " >" + log + " 2>&1").c_str());
    std::map<int, std::string> first; // the first error of each line
    std::ifstream in(log);
    for (std::string line; std::getline(in, line);) {
        const size_t at = line.find("lists.c:"), error = line.find("error: ");
        if (at == std::string::npos || error == std::string::npos || line.find("note:") != std::string::npos) continue;
        first.emplace(atoi(line.c_str() + at + 8), line.substr(error + 7));
    }
    if (!code || first.empty()) result.wrong.push_back("the compiler said nothing: " + log);
    for (size_t i = 0; i < all.size(); i++) {
        const auto found = first.find((int)i + 10);
        const std::string said = found == first.end() ? "" : found->second, what = all[i].dtype + ", " + all[i].ops + ": " + (said.empty() ? "it compiles" : said);
        if (all[i].expect.empty() != said.empty()) result.wrong.push_back(what);
        else if (all[i].expect != "*" && said.find(all[i].expect) == std::string::npos) result.wrong.push_back(what + "; it should say " + all[i].expect);
        else (said.empty() ? result.fine : result.refused)++;
    }
    return result;
}

} // namespace misuse

#endif
