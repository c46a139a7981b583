/*
 * A tour of plexus.h: two attachments, to two nodes of one cluster, and everything that they can do with each other.
 *
 *     cc tour.c -lplexus -lpthread -o tour && ./tour c1/run/n1.attach c1/run/n2.attach
 */
#include <plexus.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s: %s\n", what, plexus_strerror(result), plexus_last_error());
        exit(1);
    }
}

static void expect(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "check failed: %s\n", what);
        exit(1);
    }
}

#define SECONDS(n) ((int64_t)(n) * 1000000)

static void datagrams(plexus_client *one, plexus_client *two)
{
    plexus_port *from, *to;
    plexus_address address, sender;
    char text[64];
    must(plexus_bind(one, 0, &from), "any port");
    must(plexus_bind(two, 70, &to), "port 70");
    expect(plexus_bind(two, 70, &from) == PLEXUS_E_TAKEN, "a port is taken once");
    must(plexus_port_address(to, &address), "its address");
    expect(address.port == 70 && address.node == (uint32_t)plexus_node(two), "the address names node and port");
    for (int i = 0; i < 10; i++) {
        int length = snprintf(text, sizeof text, "message %d", i);
        must(plexus_send(from, address, text, length, SECONDS(30)), "send");
    }
    for (int i = 0; i < 10; i++) {
        char expected[64];
        int length = snprintf(expected, sizeof expected, "message %d", i);
        ssize_t got = plexus_receive(to, text, sizeof text, &sender, SECONDS(30));
        must((int)got, "receive");
        expect(got == length && memcmp(text, expected, length) == 0, "messages come whole and in order");
    }
    expect(sender.node == (uint32_t)plexus_node(one), "the sender is known");
    expect(plexus_receive(to, text, sizeof text, NULL, 0) == PLEXUS_E_TIMED_OUT, "nothing more is there");
    must(plexus_settle(from, SECONDS(30)), "all was taken");
    plexus_unbind(to);
    plexus_unbind(from);
}

static void *serve(void *server)
{
    plexus_request *request;
    size_t length;
    must(plexus_next_request(server, &request, SECONDS(30)), "the first call");
    const char *bytes = plexus_request_bytes(request, &length);
    char answer[64];
    int answered = snprintf(answer, sizeof answer, "you said %.*s", (int)length, bytes);
    must(plexus_reply(request, answer, answered), "reply");
    must(plexus_next_request(server, &request, SECONDS(30)), "the second call");
    plexus_refuse(request);
    return NULL;
}

static void calls(plexus_client *one, plexus_client *two)
{
    plexus_server *server;
    plexus_address address;
    pthread_t thread;
    char answer[64];
    must(plexus_serve(two, 5, &server), "serve");
    must(plexus_server_address(server, &address), "its address");
    expect(pthread_create(&thread, NULL, serve, server) == 0, "a thread");
    ssize_t length = plexus_call(one, address, "hello", 5, answer, sizeof answer, SECONDS(30));
    must((int)length, "call");
    expect(length == 14 && memcmp(answer, "you said hello", 14) == 0, "the answer");
    expect(plexus_call(one, address, "?", 1, answer, sizeof answer, SECONDS(30)) == PLEXUS_E_PORT_CLOSED, "a refusal");
    pthread_join(thread, NULL);
    plexus_stop_serving(server);
    address.node = 99;
    expect(plexus_call(one, address, "?", 1, answer, sizeof answer, SECONDS(30)) == PLEXUS_E_NODE_GONE, "no such node");
}

static void windows(plexus_client *one, plexus_client *two)
{
    plexus_window *home, *copy;
    uint64_t word;
    char text[8];
    must(plexus_window_create(one, "board", 4096, &home), "create");
    must(plexus_window_put(home, 64, "before", 6), "put");
    must(plexus_window_find(two, "board", &copy), "find");
    expect(plexus_window_length(copy) == 4096 && plexus_window_home(copy) == plexus_node(one), "what it is");
    must(plexus_window_map(copy), "map");
    must(plexus_window_read(copy, 64, text, 6), "read");
    expect(memcmp(text, "before", 6) == 0, "a copy has what was there before");
    must(plexus_window_fetch_add(copy, 8, 5, &word), "fetch_add");
    expect(word == 0, "the word before");
    must(plexus_window_wait(home, 8, 0, &word, SECONDS(30)), "wait");
    expect(word == 5, "the word after");
    must(plexus_window_compare_swap(home, 8, 5, 9, &word), "compare_swap");
    must(plexus_window_load(copy, 8, &word), "load");
    expect(word == 9, "changes are in every copy when they return");
    must(plexus_window_get(copy, 64, text, 6), "get");
    expect(plexus_window_put(copy, 4095, "ab", 2) == PLEXUS_E_OUT_OF_RANGE, "the end of a window");
    plexus_window_close(home);
    expect(plexus_window_wait(copy, 8, 9, &word, SECONDS(30)) == PLEXUS_E_NO_WINDOW, "its end is seen");
    plexus_window_close(copy);
}

static void queues(plexus_client *one, plexus_client *two)
{
    plexus_cq *queue, *far_queue;
    plexus_endpoint *endpoint, *far;
    plexus_window *home, *window;
    plexus_address address;
    plexus_completion done;
    char text[16];
    must(plexus_cq_create(one, PLEXUS_ADAPTIVE, &queue), "a queue");
    must(plexus_cq_create(two, PLEXUS_EVENT, &far_queue), "another");
    must(plexus_endpoint_create(one, 0, queue, &endpoint), "an endpoint");
    must(plexus_endpoint_create(two, 12, far_queue, &far), "another");
    must(plexus_endpoint_address(far, &address), "its address");
    must(plexus_endpoint_connect(endpoint, address), "connect");
    must(plexus_post_receive(far, 1, sizeof text), "post a receive");
    must(plexus_post_send(endpoint, 2, "posted", 6), "post a send");
    must(plexus_cq_wait(far_queue, &done, text, sizeof text, SECONDS(30)), "its arrival");
    expect(done.cookie == 1 && done.operation == PLEXUS_RECEIVE && done.length == 6, "what has come");
    expect(done.status == PLEXUS_OK && memcmp(text, "posted", 6) == 0, "its bytes");
    expect(plexus_cq_wait(far_queue, &done, NULL, 0, 0) == PLEXUS_E_TIMED_OUT, "no more");
    must(plexus_cq_wait(queue, &done, NULL, 0, SECONDS(30)), "the end of the send");
    expect(done.cookie == 2 && done.operation == PLEXUS_SEND && done.status == PLEXUS_OK, "it has arrived");

    must(plexus_window_create(two, "target", 64, &home), "a window");
    must(plexus_window_open(one, plexus_node(two), "target", &window), "open");
    must(plexus_post_put(endpoint, 3, window, 8, "12345678", 8), "post a put");
    must(plexus_post_fetch_add(endpoint, 4, window, 0, 7), "post an add");
    must(plexus_post_get(endpoint, 5, window, 8, 8), "post a get");
    for (uint64_t cookie = 3; cookie <= 5; cookie++) {
        must(plexus_cq_wait(queue, &done, text, sizeof text, SECONDS(30)), "an access");
        expect(done.cookie == cookie && done.status == PLEXUS_OK, "in the order posted");
    }
    expect(done.length == 8 && memcmp(text, "12345678", 8) == 0, "what was put is what is got");
    plexus_window_close(window);
    plexus_window_close(home);
    plexus_endpoint_destroy(far);
    plexus_endpoint_destroy(endpoint);
    plexus_cq_destroy(far_queue);
    plexus_cq_destroy(queue);
}

int main(int count, char **arguments)
{
    plexus_client *one, *two;
    if (count != 3) {
        fprintf(stderr, "usage: %s SOCKET SOCKET\n", arguments[0]);
        return 2;
    }
    expect(plexus_abi_version() == PLEXUS_ABI_VERSION, "header and library are of one version");
    expect(plexus_attach("/nowhere", &one) == PLEXUS_E_ATTACH && *plexus_last_error(), "there is nothing there");
    must(plexus_attach(arguments[1], &one), "attach");
    must(plexus_attach(arguments[2], &two), "attach");
    datagrams(one, two);
    calls(one, two);
    windows(one, two);
    queues(one, two);
    plexus_detach(two);
    plexus_detach(one);
    puts("all checks passed");
    return 0;
}
