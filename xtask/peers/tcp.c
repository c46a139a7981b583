// Measures TCP sockets between two pinned processes that poll, optionally in two namespaces: half a
// round trip, and a stream.
// usage: tcp CPU CPU NAMESPACE NAMESPACE ADDRESS latency|rate:SIZE...  ("-": no namespace)
// ADDRESS is the address of the second side.
// prints "latency SIZE NS" and "rate SIZE MESSAGES_PER_SECOND"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/wait.h>
#include "common.h"

static int fd, first;

static void move(char *buffer, size_t size, int out) {
    for (size_t done = 0; done < size;) {
        ssize_t n = out ? send(fd, buffer + done, size - done, MSG_DONTWAIT | MSG_NOSIGNAL)
                        : recv(fd, buffer + done, size - done, MSG_DONTWAIT);
        if (n > 0) done += (size_t)n;
        else if (n == 0) die("the connection was closed");
        else if (errno != EAGAIN && errno != EINTR) die("socket");
    }
}

static int check(int result, const char *what) {
    if (result < 0) die(what);
    return result;
}

static void latency(char *buffer, size_t size) {
    int rounds = 20000, warm = 2000;
    for (int i = 0; i < warm + rounds; i++) {
        double started = now_ns();
        move(buffer, size, first);
        move(buffer, size, !first);
        if (i >= warm) sample(i - warm, (now_ns() - started) / 2);
    }
    if (first) printf("latency %zu %.1f\n", size, median(rounds));
}

static void stream(char *buffer, size_t size) {
    size_t messages = ((size_t)1 << 30) / size, warm = messages / 10;
    double started = 0;
    for (size_t i = 0; i < warm + messages; i++) {
        if (i == warm) started = now_ns();
        move(buffer, size, first);
    }
    move(buffer, 1, !first);
    if (first) printf("rate %zu %.1f\n", size, (double)messages * 1e9 / (now_ns() - started));
}

int main(int argc, char **argv) {
    if (argc < 7) die("usage: tcp CPU CPU NAMESPACE NAMESPACE ADDRESS latency|rate:SIZE...");
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, argv[5], &address.sin_addr) != 1) die("address");
    int port[2];
    check(pipe(port), "pipe");
    pid_t child = check(fork(), "fork");
    first = child != 0;
    limit_time();
    // A process sees the end of the other only if no one else holds that end of the pipe.
    close(port[first]);
    enter(argv[first ? 3 : 4]);
    socklen_t length = sizeof address;
    int own = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
    if (first) {
        if (read(port[0], &address.sin_port, sizeof address.sin_port) != sizeof address.sin_port) die("port");
        check(connect(own, (struct sockaddr *)&address, length), "connect");
        fd = own;
    } else {
        check(bind(own, (struct sockaddr *)&address, length), "bind");
        check(getsockname(own, (struct sockaddr *)&address, &length), "getsockname");
        check(listen(own, 1), "listen");
        if (write(port[1], &address.sin_port, sizeof address.sin_port) != sizeof address.sin_port) die("port");
        fd = check(accept(own, NULL, NULL), "accept");
    }
    int on = 1;
    check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
    pin(atoi(argv[first ? 1 : 2]));
    for (int arg = 6; arg < argc; arg++) {
        size_t size = (size_t)atol(strchr(argv[arg], ':') + 1);
        char *buffer = memory(size);
        (argv[arg][0] == 'l' ? latency : stream)(buffer, size);
        free(buffer);
    }
    if (first) waitpid(child, NULL, 0);
    return 0;
}
