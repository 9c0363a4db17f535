/* The command: exit codes, and errors on stderr that say what was wrong and what is allowed. */
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static const char good[] = "conv2d:fwd:f32:nchw:n1c4h6w7:o4k3p1g4";
static char folder[] = "/tmp/weft-command-XXXXXX";

/* Runs the command, both streams into text; P stands for a good problem, D for a folder of our own. */
static int run(const char *arguments, char *text, size_t capacity) {
    char line[4096] = "";
    weft__text t = {line, sizeof(line), 0};
    weft__put(&t, "'%s' ", WEFT_COMMAND);
    for (const char *at = arguments; *at; at++) {
        bool alone = (at == arguments || at[-1] == ' ') && (at[1] == 0 || at[1] == ' ' || at[1] == '/');
        if (*at == 'P' && alone)
            weft__put(&t, "%s", good);
        else if (*at == 'D' && alone)
            weft__put(&t, "%s", folder);
        else
            weft__put(&t, "%c", *at);
    }
    weft__put(&t, " 2>&1");
    FILE *f = popen(line, "r");
    CHECK(f, "no process");
    size_t n = fread(text, 1, capacity - 1, f);
    text[n] = 0;
    while (fgetc(f) != EOF) {}
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *arguments, int code, const char *words) {
    static char text[65536];
    int got = run(arguments, text, sizeof(text));
    CHECK(got == code, "weft %s: exit code %d, wanted %d: %.500s", arguments, got, code, text);
    for (const char *at = words; *at;) {
        char word[256];
        size_t n = strcspn(at, "|");
        snprintf(word, sizeof(word), "%.*s", (int)n, at);
        CHECK(strstr(text, word), "weft %s: no \"%s\" in: %.500s", arguments, word, text);
        at += n + (at[n] == '|');
    }
}

TEST(help) {
    static const char *const commands[] = {"info", "list", "plan", "bench", "verify", "tune", "wisdom"};
    expect("", 2, "usage: weft COMMAND");
    expect("--help", 0, "usage: weft COMMAND|verify");
    expect("--version", 0, WEFT_VERSION);
    expect("help", 0, "usage: weft COMMAND");
    expect("help plan", 0, "usage: weft plan PROBLEM|--measure");
    expect("help nonsense", 2, "no command 'nonsense'");
    expect("info --help", 0, "usage: weft info\n");
    expect("nonsense", 2, "no command 'nonsense'|info, list, plan");
    for (size_t i = 0; i < WEFT__COUNT(commands); i++) {
        char arguments[64];
        snprintf(arguments, sizeof(arguments), "%s --help", commands[i]);
        expect(arguments, 0, "usage: weft|exit codes: 0 done, 1 failed, 2 wrong use");
        snprintf(arguments, sizeof(arguments), "%s --nonsense", commands[i]);
        expect(arguments, 2, "no option --nonsense|allowed: ");
    }
}

/* docs/operators.md says what the tables say. */
TEST(operators_page_is_fresh) {
    static char made[65536], kept[65536];
    CHECK(run("list --operators", made, sizeof(made)) == 0, "weft list --operators: %.500s", made);
    FILE *f = fopen(WEFT_SOURCE "/docs/operators.md", "r");
    CHECK(f, "docs/operators.md is missing");
    kept[fread(kept, 1, sizeof(kept) - 1, f)] = 0;
    fclose(f);
    CHECK(strcmp(made, kept) == 0,
          "docs/operators.md is stale: make it anew with weft list --operators > docs/operators.md");
}

TEST(misuse) {
    expect("info x", 2, "got 'x'");
    expect("list P P", 2, "2 problems");
    expect("plan", 2, "0 problems");
    expect("plan conv2d:fwd:f32:nchw:n1c8h56:o8k3", 2,
           "weft plan: problem, column 28: expected 'w' and a number, got ':'\n|   ^");
    expect("plan conv2d:fwd:f32:nchw:n1c8h9w9:o8k3g3", 2, "groups is 3");
    expect("plan --kernel nonsense P", 2, "got 'nonsense'|conv_ref");
    expect("plan --limit -5 P", 2, "--limit: got '-5'|a whole number from 1");
    expect("verify", 2, "nothing to verify");
    expect("verify --random 0", 2, "--random: got '0'");
    expect("verify --random 5x", 2, "--random: got '5x'");
    expect("verify --random", 2, "--random needs");
    expect("verify --random 5 --threads 2,,3", 2, "--threads: got '2,,3'");
    expect("verify --random 5 --device tpu", 2, "--device: got 'tpu', allowed: cpu, cuda");
    expect("verify --random 5 --kernel nonsense", 2, "--kernel: got 'nonsense'");
    expect("verify --seconds nan", 2, "--seconds: got 'nan'");
    expect("bench", 2, "no problem given");
    expect("bench --rounds 0 P", 2, "--rounds: got '0'");
    expect("tune P", 2, "--wisdom is missing");
    expect("tune --wisdom D/w", 2, "no problem given");
    expect("tune --again=yes --wisdom D/w P", 2, "--again takes no value");
    expect("wisdom", 2, "got nothing, allowed: show, merge, forget");
    expect("wisdom burn D/w", 2, "got burn");
    expect("wisdom merge D/w", 2, "merge OUT IN...");
}

TEST(failures) {
    expect("wisdom show D/none", 1, "cannot be read");
    expect("wisdom forget D/none P", 1, "cannot be read");
    expect("bench --json D/none/x.json P", 1, "--json|could not be written");
    expect("tune --wisdom D/none/x P --seconds 0.05", 1, "--wisdom");
    expect("verify --kernel conv_ref__cuda P", 1, "applies to any");
    expect("plan --kernel conv_ref__cuda P", 1, "does not apply: for another device");
}

TEST(a_walk) {
    CHECK(mkdtemp(folder), "no folder");
    expect("info", 0, "isa: |threads: |cuda: ");
    expect("list", 0, "conv_ref");
    expect("list P", 0, "conv_ref|yes|no: ");
    expect("plan P", 0, "problem:|kernel:|why:       estimate|refused: ");
    expect("plan --kernel conv_ref P", 0, "conv_ref\n|pinned");
    expect("verify P --seed 18446744073709551615", 0, "1 problem, |0 failures");
    expect("verify --random 20 --seed 3 --threads 1,3", 0, "20 problems|0 failures");
    expect("bench --rounds 1 --kernel conv_ref --json D/x.json P", 0, "conv_ref|floor");
    expect("tune P --wisdom D/w --seconds 0.1", 0, "conv2d:fwd");
    expect("tune P --wisdom D/w --seconds 0.1", 0, "known before");
    expect("wisdom show D/w", 0, "0 bad lines|conv2d:fwd");
    expect("tune P dgmm:fwd:f32:dense:n1h2w2:side1@cuda63 --wisdom D/part --seconds 0.1", 1, "weft tune: ");
    expect("wisdom show D/part", 0, "0 bad lines|conv2d:fwd"); /* what came before the failure is kept */
    expect("wisdom merge D/w2 D/w", 0, "entries");
    expect("plan --wisdom D/w2 P", 0, "why:       wisdom|(measured)");
    expect("wisdom forget D/w2 P", 0, "forgotten");
    expect("wisdom show D/w2", 0, "0 entries for this machine");
    char clean[128];
    snprintf(clean, sizeof(clean), "rm -rf '%s'", folder);
    CHECK(system(clean) == 0, "%s is left", folder);
}
