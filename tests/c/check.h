/* What the C tests say when something is not as it should be. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            const char *said = hf_error();                                                         \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__,            \
                    #condition, said ? said : "none");                                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
