/* Counts lines, words and bytes of the files that its arguments name, or of its input. Ordinary C: it knows nothing of us. */
#include <ctype.h>
#include <stdio.h>

static int count(FILE *from, const char *name) {
    unsigned long lines = 0, words = 0, bytes = 0;
    int c, inside = 0;
    while ((c = getc(from)) != EOF) {
        bytes++;
        lines += c == '\n';
        if (isspace(c)) {
            inside = 0;
        } else if (!inside) {
            inside = 1;
            words++;
        }
    }
    printf("%lu %lu %lu%s%s\n", lines, words, bytes, *name ? " " : "", name);
    return ferror(from);
}

int main(int argc, char **argv) {
    int failed = 0;
    if (argc < 2) {
        return count(stdin, "");
    }
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "r");
        if (!file) {
            perror(argv[i]);
            failed = 1;
            continue;
        }
        failed |= count(file, argv[i]);
        fclose(file);
    }
    return failed;
}
