/* What surrounds the process: rights it has over its caller. */
#include <errno.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static int lines_of(const char *command) {
    int n = 0, c;
    FILE *f = popen(command, "r");
    CHECK(f, "%s", command);
    while ((c = fgetc(f)) != EOF) n += c == '\n';
    pclose(f);
    return n;
}

/* ---------------------------------------------------------------- the environment */
TEST(the_environment_is_read_in_one_place) {
    const char *folders = WEFT_SOURCE "/src " WEFT_SOURCE "/include " WEFT_SOURCE "/tools " WEFT_SOURCE "/python/csrc";
    char command[1024];
    snprintf(command, sizeof(command), "grep -rnw getenv %s", folders);
    CHECK(lines_of(command) == 0, "%s finds some", command);
    snprintf(command, sizeof(command), "grep -rn 'secure_getenv(' %s", folders);
    CHECK(lines_of(command) == 1, "%s finds %d", command, lines_of(command));
}

static const char setuid_name[] = "weft-setuid";

/* Run twice: here, where variables count, and from a_setuid_program, where they do not. */
TEST(variables_and_rights) {
    bool secure = getauxval(AT_SECURE) != 0;
    if (strstr(program_invocation_name, setuid_name) && !secure) SKIP("setuid has no effect here");
    static const char *const names[] = {"WEFT_NVRTC", "WEFT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"};
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        setenv(names[i], "/of/the/caller", 1);
        CHECK(!weft__env(names[i]) == secure, "%s is %s", names[i], secure ? "read" : "not read");
    }
    setenv("WEFT_THREADS", "wrong", 1);
    weft_ctx *ctx = NULL;
    weft_status s = weft_ctx_create(&ctx, NULL);
    unsetenv("WEFT_THREADS");
    weft_ctx_release(ctx);
    CHECK((s == WEFT_OK) == secure, "%s with a wrong WEFT_THREADS", weft_status_name(s));
}

TEST(a_setuid_program) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("sanitizers do not start in setuid programs");
#endif
    if (geteuid() != 0) SKIP("only root can make a program that runs as somebody else");
    char folder[] = "/tmp/weft-process-XXXXXX", program[64], command[256];
    CHECK(mkdtemp(folder), "%s", strerror(errno));
    snprintf(program, sizeof(program), "%s/%s", folder, setuid_name);
    snprintf(command, sizeof(command), "cp /proc/%ld/exe %s", (long)getpid(), program);
    CHECK(system(command) == 0 && chown(program, 65534, 65534) == 0 && chmod(program, 04755) == 0, "%s", command);
    snprintf(command, sizeof(command), "%s variables_and_rights", program);
    fflush(NULL);
    int status = system(command);
    remove(program);
    rmdir(folder);
    CHECK(status == 0, "status %d", status);
}
