/* A handler of the HTTP example, told of its request as CGI does. Without anybody to greet it exits with 404, which becomes
 * the status. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    const char *method = getenv("REQUEST_METHOD"), *target = getenv("REQUEST_URI"), *agent = getenv("HTTP_USER_AGENT");
    if (!method || !target || strncmp(target, "/greet/", 7) != 0 || target[7] == '\0') {
        puts("who is to be greeted?");
        return 404;
    }
    printf("%s: good day, %s, says %s\n", method, target + 7, agent ? agent : "nobody");
    return 0;
}
