/*
 * Takes what a program can have, says so, and echoes datagrams on port 7 until it is told to stop or killed.
 *
 *     cc holder.c -lplexus -o holder && ./holder c1
 */
#include <plexus.h>
#include <stdio.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, plexus_last_error());
    return 1;
}

int main(int count, char **arguments)
{
    plexus_client *client;
    plexus_port *port;
    plexus_server *server;
    plexus_window *window;
    static char message[PLEXUS_MAX_MESSAGE];
    if (count != 2)
        return 2;
    if (plexus_attach(arguments[1], &client) < 0)
        return failed("attach");
    if (plexus_bind(client, 7, &port) < 0)
        return failed("port 7");
    if (plexus_serve(client, 8, &server) < 0)
        return failed("serving at 8");
    if (plexus_window_create(client, "held", 1 << 20, &window) < 0)
        return failed("a window");
    puts("ready");
    fflush(stdout);
    for (;;) {
        plexus_address from;
        ssize_t length = plexus_receive(port, message, sizeof message, &from, PLEXUS_FOREVER);
        if (length < 0)
            return failed("receive");
        if (length == 0)
            return 0;
        if (plexus_send(port, from, message, length, PLEXUS_FOREVER) < 0)
            return failed("send");
    }
}
