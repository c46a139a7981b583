// Ping-pong over plain TCP sockets on the loopback device, two pinned processes: half a round trip in nanoseconds.
// usage: tcp poll|wait CPU CPU SIZE...
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common.h"

static int poll_mode;

static void move(int fd, char *buffer, size_t size, int out) {
    for (size_t done = 0; done < size;) {
        int flags = poll_mode ? MSG_DONTWAIT : 0;
        ssize_t n = out ? send(fd, buffer + done, size - done, flags | MSG_NOSIGNAL)
                        : recv(fd, buffer + done, size - done, flags);
        if (n > 0) done += (size_t)n;
        else if (n == 0) die("the connection was closed");
        else if (errno != EAGAIN && errno != EINTR) die("socket");
    }
}

static int check(int result, const char *what) {
    if (result < 0) die(what);
    return result;
}

int main(int argc, char **argv) {
    if (argc < 5) die("usage: tcp poll|wait CPU CPU SIZE...");
    poll_mode = !strcmp(argv[1], "poll");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
    check(bind(listener, (struct sockaddr *)&address, length), "bind");
    check(getsockname(listener, (struct sockaddr *)&address, &length), "getsockname");
    check(listen(listener, 1), "listen");
    pid_t child = check(fork(), "fork");
    int fd;
    if (child == 0) {
        fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
        check(connect(fd, (struct sockaddr *)&address, length), "connect");
    } else {
        fd = check(accept(listener, NULL, NULL), "accept");
    }
    int on = 1;
    check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
    pin(atoi(argv[child ? 2 : 3]));
    for (int arg = 4; arg < argc; arg++) {
        size_t size = (size_t)atol(argv[arg]);
        char *buffer = calloc(1, size);
        int rounds = 20000, warm = 2000;
        for (int i = 0; i < warm + rounds; i++) {
            double started = now_ns();
            if (child) {
                move(fd, buffer, size, 1);
                move(fd, buffer, size, 0);
                if (i >= warm) sample(i - warm, (now_ns() - started) / 2);
            } else {
                move(fd, buffer, size, 0);
                move(fd, buffer, size, 1);
            }
        }
        if (child) printf("%zu %.1f\n", size, median(rounds));
        free(buffer);
    }
    if (child) waitpid(child, NULL, 0);
    return 0;
}
