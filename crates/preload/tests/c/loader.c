/* Loads the plugin argv[1] argv[2] times and makes the same number of calls each time. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int main(int argc, char **argv) {
    struct stat st;
    (void)argc;
    for (int i = 0; i < atoi(argv[2]); i++) {
        void *lib = dlopen(argv[1], RTLD_NOW);
        if (!lib) return puts(dlerror()), 1;
        long (*plain)(const char *, struct stat *) = dlsym(lib, "plain");
        long (*jumped_to)(const char *, struct stat *, long) = dlsym(lib, "jumped_to");
        long (*relative)(const char *, struct stat *) = dlsym(lib, "relative");
        long (*looped)(const char *, struct stat *, long) = dlsym(lib, "looped");
        uint32_t (*constants)(uint32_t) = dlsym(lib, "constants");
        uint64_t (*data_sum)(void) = dlsym(lib, "data_sum");
        for (int n = 0; n < 100; n++) {
            printf("%ld %ld %ld %ld %ld %ld %u %lu\n", plain("/", &st), plain("/none", &st),
                   jumped_to("/", &st, 0), jumped_to("/none", &st, 1), relative("/", &st),
                   looped("/", &st, 5), constants(n), data_sum());
        }
        dlclose(lib);
    }
    return 0;
}
