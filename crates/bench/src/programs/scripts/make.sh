# make: a program of C files, two at a time, and once more after a change.
prepare() {
    local i
    for ((i = 0; i < 3 * N; i++)); do
        printf '#include <stdio.h>\n#include <stdlib.h>\n#include "all.h"\n' >f$i.c
        printf 'int f%d(int x) { char b[32]; snprintf(b, 32, "%%d", x + %d); return atoi(b); }\n' \
            $i $i >>f$i.c
        printf 'int f%d(int);\n' $i >>all.h
    done
    {
        printf '#include <stdio.h>\n#include "all.h"\nint main(void) { int s = 0;\n'
        for ((i = 0; i < 3 * N; i++)); do printf 's += f%d(s);\n' $i; done
        printf 'printf("%%d\\n", s); return 0; }\n'
    } >main.c
    printf 'OBJECTS := $(patsubst %%.c,%%.o,$(wildcard *.c))\n' >Makefile
    printf 'program: $(OBJECTS)\n\tgcc -o $@ $(OBJECTS)\n' >>Makefile
    printf '%%.o: %%.c all.h\n\tgcc -O1 -c -o $@ $<\n' >>Makefile
}

work() {
    make -s -j2
    ./program
    echo 'int more;' >>f1.c
    make -s -j2
    ./program
}
