// Measures libfabric RDM endpoints between two pinned processes, optionally in two namespaces: half
// a round trip, and a stream in windows of 64 messages.
// usage: ofi PROVIDER CPU CPU NAMESPACE NAMESPACE ADDRESS ADDRESS latency|rate:SIZE...  ("-": none)
// prints "latency SIZE NS" and "rate SIZE MESSAGES_PER_SECOND"
#define _GNU_SOURCE
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sys/wait.h>
#include "common.h"

enum { WINDOW = 64, NAME = 256, EACH = 100, CHUNKS = 100, WARM = 20 };

static struct fid_cq *sent_queue, *arrived_queue;
static struct fid_ep *endpoint;
static struct fi_info *info;
static fi_addr_t peer;
static int first, awaited_sends;

static void check(long result, const char *what) {
    if (result >= 0) return;
    fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-result));
    exit(1);
}

static int taken(struct fid_cq *queue) {
    struct fi_cq_entry entries[WINDOW];
    ssize_t count = fi_cq_read(queue, entries, WINDOW);
    if (count == -FI_EAGAIN) return 0;
    check(count, "fi_cq_read");
    return (int)count;
}

// Some providers make progress only when both queues are read.
static int arrived(void) {
    awaited_sends -= taken(sent_queue);
    return taken(arrived_queue);
}

static void await(int messages) {
    while (messages > 0) messages -= arrived();
}

static void await_sends(void) {
    while (awaited_sends > 0) awaited_sends -= taken(sent_queue);
}

static void give(void *buffer, size_t size) {
    ssize_t result;
    if (size <= info->tx_attr->inject_size) {
        while ((result = fi_inject(endpoint, buffer, size, peer)) == -FI_EAGAIN) awaited_sends -= taken(sent_queue);
    } else {
        while ((result = fi_send(endpoint, buffer, size, NULL, peer, NULL)) == -FI_EAGAIN)
            awaited_sends -= taken(sent_queue);
        awaited_sends++;
    }
    check(result, "send");
}

static void expect(void *buffer, size_t size) {
    ssize_t result;
    while ((result = fi_recv(endpoint, buffer, size, NULL, FI_ADDR_UNSPEC, NULL)) == -FI_EAGAIN) taken(sent_queue);
    check(result, "fi_recv");
}

static void latency(size_t size) {
    char *out = memory(size), *in = memory(size);
    expect(in, size);
    for (int chunk = 0; chunk < WARM + CHUNKS; chunk++) {
        double started = now_ns();
        for (int i = 0; i < EACH; i++) {
            if (first) give(out, size);
            await(1);
            // A receive is posted before the peer can send the next message.
            expect(in, size);
            if (!first) give(out, size);
            await_sends();
        }
        if (chunk >= WARM) sample(chunk - WARM, (now_ns() - started) / 2 / EACH);
    }
    // A last message completes the receive that is still posted.
    give(out, 1);
    await(1);
    await_sends();
    if (first) printf("latency %zu %.1f\n", size, median(CHUNKS));
    free(out);
    free(in);
}

// Uses one buffer on each side.
static void stream(size_t size) {
    char *buffer = memory(size);
    int windows = size > 4096 ? 100 : 2000, warm = windows / 10;
    double started = 0;
    char answer = 0;
    for (int w = 0; w < warm + windows; w++) {
        if (w == warm) started = now_ns();
        if (first) {
            expect(&answer, 1);
            for (int i = 0; i < WINDOW; i++) give(buffer, size);
            await(1);
        } else {
            for (int i = 0; i < WINDOW; i++) expect(buffer, size);
            await(WINDOW);
            give(&answer, 1);
        }
        await_sends();
    }
    if (first) printf("rate %zu %.1f\n", size, (double)windows * WINDOW * 1e9 / (now_ns() - started));
    free(buffer);
}

static void open_endpoint(const char *provider, const char *address) {
    struct fi_info *hints = fi_allocinfo();
    if (!hints) die("memory");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->domain_attr->mr_mode = 0;
    hints->fabric_attr->prov_name = strdup(provider);
    const char *node = address[0] == '-' ? NULL : address;
    check(fi_getinfo(FI_VERSION(1, 15), node, NULL, node ? FI_SOURCE : 0, hints, &info), "fi_getinfo");
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *addresses;
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_CONTEXT, .size = 1024};
    struct fi_av_attr table = {.type = FI_AV_TABLE};
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    check(fi_cq_open(domain, &queue, &sent_queue, NULL), "fi_cq_open");
    check(fi_cq_open(domain, &queue, &arrived_queue, NULL), "fi_cq_open");
    check(fi_av_open(domain, &table, &addresses, NULL), "fi_av_open");
    check(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
    check(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind");
    check(fi_ep_bind(endpoint, &sent_queue->fid, FI_TRANSMIT), "fi_ep_bind");
    check(fi_ep_bind(endpoint, &arrived_queue->fid, FI_RECV), "fi_ep_bind");
    check(fi_enable(endpoint), "fi_enable");
    peer = (fi_addr_t)(uintptr_t)addresses;
}

// Exchanges the endpoint names through pipes, which need no network.
static void meet(int to, int from) {
    struct fid_av *addresses = (struct fid_av *)(uintptr_t)peer;
    char own[NAME] = {0}, other[NAME];
    size_t length = NAME;
    check(fi_getname(&endpoint->fid, own, &length), "fi_getname");
    if (write(to, own, NAME) != NAME || read(from, other, NAME) != NAME) die("pipe");
    if (fi_av_insert(addresses, other, 1, &peer, 0, NULL) != 1) die("fi_av_insert");
}

int main(int argc, char **argv) {
    if (argc < 9) die("usage: ofi PROVIDER CPU CPU NAMESPACE NAMESPACE ADDRESS ADDRESS latency|rate:SIZE...");
    int there[2], back[2];
    if (pipe(there) || pipe(back)) die("pipe");
    pid_t child = fork();
    if (child < 0) die("fork");
    first = child != 0;
    limit_time();
    // A process sees the end of the other only if no one else holds that end of the pipe.
    close(first ? there[0] : there[1]);
    close(first ? back[1] : back[0]);
    pin(atoi(argv[first ? 2 : 3]));
    enter(argv[first ? 4 : 5]);
    open_endpoint(argv[1], argv[first ? 6 : 7]);
    meet(first ? there[1] : back[1], first ? back[0] : there[0]);
    for (int arg = 8; arg < argc; arg++) {
        size_t size = (size_t)atol(strchr(argv[arg], ':') + 1);
        (argv[arg][0] == 'l' ? latency : stream)(size);
    }
    if (first) {
        fflush(stdout);
        waitpid(child, NULL, 0);
    }
    // The system releases the other resources of the provider when the process ends.
    fi_close(&endpoint->fid);
    return 0;
}
