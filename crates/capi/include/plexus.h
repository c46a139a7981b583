/*
 * plexus.h - programs of a Plexus cluster, in C.
 *
 * A program attaches to the node that runs on its machine and can then work with programs of every node: send reliable
 * datagrams, call and answer, share windows of memory, lock, and do all of it posted, with completion queues. Link with -lplexus.
 *
 * Results. A function that returns int returns PLEXUS_OK (0), or a number below zero that plexus_strerror explains;
 * where it says so, a number above zero is a result. plexus_last_error has the whole story of the calling thread's last
 * failure. Handles are written only on success. A handle that is ended twice is PLEXUS_E_ARGUMENT, where there is
 * a result, and harmless.
 *
 * Limits of time are in microseconds; below zero: none; 0: only look.
 *
 * Threads. Every function may be called by any thread at any time, several threads may use one handle, and a
 * blocking call blocks only its caller; except: a handle is ended (detach, unbind, close, destroy, stop_serving) only when no
 * thread uses it any more; and one thread at a time waits for plexus_fd, while others may be in calls that wait. The
 * library starts no thread: what was posted makes progress while some thread is in a call of its client. After fork,
 * only the parent may go on using the library.
 *
 * Lifetime. Handles may be ended in any order. Everything that a program has is released when the program ends,
 * in whatever way, and at once.
 *
 * Messages and accesses have up to PLEXUS_MAX_MESSAGE bytes where nothing else is said.
 */
#ifndef PLEXUS_H
#define PLEXUS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; plexus_abi_version says which one the library has. They must be equal. */
#define PLEXUS_ABI_VERSION 1

/* Longest message. */
#define PLEXUS_MAX_MESSAGE 65536

/* No limit of time. */
#define PLEXUS_FOREVER (-1)

/* What went wrong. */
#define PLEXUS_OK 0
#define PLEXUS_E_ATTACH (-1)        /* no node let the program in */
#define PLEXUS_E_NODE_LOST (-2)     /* the program's node has ended, or has cut it off: attach again */
#define PLEXUS_E_NODE_GONE (-3)     /* the other node is gone, or there is none of that number */
#define PLEXUS_E_PORT_CLOSED (-4)   /* nobody has that port, or who had it has closed it */
#define PLEXUS_E_UNDELIVERED (-5)   /* messages sent before were not taken, and will not be */
#define PLEXUS_E_TAKEN (-6)         /* the port or name is taken */
#define PLEXUS_E_TIMED_OUT (-7)     /* not within the time given */
#define PLEXUS_E_BUSY (-8)          /* a limit is reached */
#define PLEXUS_E_TOO_LONG (-9)      /* longer than a message may be, or than the room posted for it */
#define PLEXUS_E_NO_ROOM (-10)      /* the arena of a node has no room for the window */
#define PLEXUS_E_NO_WINDOW (-11)    /* there is no such window, or it is gone */
#define PLEXUS_E_OUT_OF_RANGE (-12) /* outside the window, or not a whole word of it */
#define PLEXUS_E_ARGUMENT (-13)     /* an argument cannot be used */
#define PLEXUS_E_SYSTEM (-14)       /* the system refused */
#define PLEXUS_E_NOT_GRANTED (-15)  /* the lock is held by others, and the request was not to wait */
#define PLEXUS_E_CANCELLED (-16)    /* the request for the lock was cancelled */
#define PLEXUS_E_DEADLOCK (-17)     /* several waited for each other, this session the youngest: release and begin again */
#define PLEXUS_E_NO_LOCK (-18)      /* there is no lock of that number */
#define PLEXUS_E_IN_PROGRESS (-19)  /* what was asked for the lock is not answered yet */
#define PLEXUS_E_NOT_WRITER (-20)   /* the value block is written when PW or EX is given up */
#define PLEXUS_E_LOCKS_LOST (-21)   /* the cluster has stopped: no lock protects anything any more */
#define PLEXUS_E_UNLOCKED (-22)     /* a status: the lock is given up */

/* How threads wait. */
#define PLEXUS_ADAPTIVE 0 /* look for a short time, then sleep */
#define PLEXUS_POLLING 1  /* never sleep: the lowest latency, a core for each waiting thread */
#define PLEXUS_EVENT 2    /* sleep at once: the least CPU */

/* A port of a node. Datagrams, calls and endpoints have ports of their own. Programs choose ports from 1 to 2^31 - 1. */
typedef struct plexus_address {
    uint32_t node;
    uint32_t port;
} plexus_address;

typedef struct plexus_client plexus_client;     /* an attachment to the local node */
typedef struct plexus_port plexus_port;         /* a port for datagrams */
typedef struct plexus_server plexus_server;     /* a port that answers calls */
typedef struct plexus_request plexus_request;   /* a call that waits for its answer */
typedef struct plexus_window plexus_window;     /* named memory of a node */
typedef struct plexus_cq plexus_cq;             /* a completion queue */
typedef struct plexus_endpoint plexus_endpoint; /* a port for posted work */
typedef struct plexus_lockspace plexus_lockspace; /* locks of one piece of work */

/* The interface version of the library. */
uint32_t plexus_abi_version(void);

/* What a code means; never null. */
const char *plexus_strerror(int code);

/* What went wrong last in this thread, in full; empty if nothing did. Good until the thread's next failure. */
const char *plexus_last_error(void);

/* ---- Attaching ---------------------------------------------------------------------------------------------------- */

/* Attaches to the node whose socket is path (run/NAME.attach in a cluster's directory), or, if path is a cluster's
 * directory, to the first node of that cluster that runs on this machine. */
int plexus_attach(const char *path, plexus_client **client);

/* Ends the attachment, as soon as everything made from it is ended too. */
void plexus_detach(plexus_client *client);

/* The node that the program is attached to; how many nodes the cluster had when the program attached: any that were added
 * since are reached as well. */
int plexus_node(const plexus_client *client);
int plexus_nodes(const plexus_client *client);

/* How threads wait in calls of this client, except those on completion queues. At first PLEXUS_ADAPTIVE. */
int plexus_set_waiting(const plexus_client *client, int mode);

/* A descriptor for poll and epoll that becomes readable when something may have come, after plexus_arm returned 1. It
 * belongs to the client. plexus_arm returns 0 when something is there already: take it (with a limit of 0) until nothing
 * more comes, then arm again. All ports and queues of the client count, also those that other threads look after. */
int plexus_fd(const plexus_client *client);
int plexus_arm(const plexus_client *client);

/* ---- Reliable datagrams ------------------------------------------------------------------------------------------- */

/* Messages keep their boundaries and arrive once each and, from one port to another, in the order sent. Up to 64 messages and
 * 256 KiB from one port to another may be under way; who sends more waits until the receiver has taken some. */

/* Takes a port of this node; 0: any that is free. plexus_unbind gives it back. */
int plexus_bind(const plexus_client *client, uint32_t number, plexus_port **port);
void plexus_unbind(plexus_port *port);

/* Where others send to. */
int plexus_port_address(const plexus_port *port, plexus_address *address);

/* Sends a message. PLEXUS_E_UNDELIVERED: messages that were sent to that port before are lost, because who had the port
 * closed it or ended; this one was not sent, the next one will be. */
int plexus_send(const plexus_port *port, plexus_address to, const void *message, size_t length, int64_t limit_us);

/* The length of the next message, of which as much is written as there is room for; what does not fit is lost. from may be
 * null. A message counts as taken by the program when the program next calls the library. */
ssize_t plexus_receive(const plexus_port *port, void *into, size_t room, plexus_address *from, int64_t limit_us);

/* Waits until everything that was sent from the port was taken. */
int plexus_settle(const plexus_port *port, int64_t limit_us);

/* ---- Calls -------------------------------------------------------------------------------------------------------- */

/* Takes a port of this node to answer calls; 0: any that is free. When it is given back, callers that wait for an answer
 * learn that there will be none. */
int plexus_serve(const plexus_client *client, uint32_t number, plexus_server **server);
void plexus_stop_serving(plexus_server *server);

/* Where others call. */
int plexus_server_address(const plexus_server *server, plexus_address *address);

/* The next call. It is ended by plexus_reply or plexus_refuse. */
int plexus_next_request(const plexus_server *server, plexus_request **request, int64_t limit_us);

/* The request, good until the call is ended; and the node that it comes from. */
const void *plexus_request_bytes(const plexus_request *request, size_t *length);
int plexus_request_node(const plexus_request *request);

/* Answers a call, or says that it will not be answered. Either ends the handle, also when it fails. */
int plexus_reply(plexus_request *request, const void *answer, size_t length);
void plexus_refuse(plexus_request *request);

/* Calls a port. The length of the answer, of which as much is written as there is room for. After PLEXUS_E_NODE_GONE,
 * PLEXUS_E_PORT_CLOSED and PLEXUS_E_TIMED_OUT the request may have been carried out or not. */
ssize_t plexus_call(const plexus_client *client, plexus_address to, const void *request, size_t request_length,
                    void *answer, size_t answer_room, int64_t limit_us);

/* ---- Windows ------------------------------------------------------------------------------------------------------ */

/* A window lives at its home, the node of the program that created it, and accesses are done there one after the other. A
 * node whose programs map it keeps a copy that they read in place; changes reach all copies in one order, and put,
 * fetch_add and compare_swap return when theirs has reached every one. Words have 8 bytes, little endian, at offsets that are
 * multiples of 8, and are never seen half changed. */

/* Makes a window of zeros, a multiple of 8 bytes long, under a name (1 to 64 bytes) that no other window of this node
 * has. Closing it ends it. For its creator it is mapped from the beginning. It lies in the part that one worker of the node has of
 * the memory for windows: with 8 workers and 16 MiB none is longer than 2 MiB. */
int plexus_window_create(const plexus_client *client, const char *name, uint64_t length, plexus_window **window);

/* The window of that name at a node; at whichever node has one. */
int plexus_window_open(const plexus_client *client, uint32_t node, const char *name, plexus_window **window);
int plexus_window_find(const plexus_client *client, const char *name, plexus_window **window);
void plexus_window_close(plexus_window *window);

/* Its length; the node that it lives at. */
uint64_t plexus_window_length(const plexus_window *window);
int plexus_window_home(const plexus_window *window);

/* Has this node keep a copy. After that: reads bytes; a word; waits until a word is not old, and gives what it is. */
int plexus_window_map(const plexus_window *window);
int plexus_window_read(const plexus_window *window, uint64_t offset, void *into, size_t length);
int plexus_window_load(const plexus_window *window, uint64_t offset, uint64_t *value);
int plexus_window_wait(const plexus_window *window, uint64_t offset, uint64_t old, uint64_t *value, int64_t limit_us);

/* At the home, whether mapped or not: reads and writes any length; adds to a word; makes it desired if it is expected. value is
 * what the word was before. */
int plexus_window_get(const plexus_window *window, uint64_t offset, void *into, size_t length);
int plexus_window_put(const plexus_window *window, uint64_t offset, const void *data, size_t length);
int plexus_window_fetch_add(const plexus_window *window, uint64_t offset, uint64_t add, uint64_t *value);
int plexus_window_compare_swap(const plexus_window *window, uint64_t offset, uint64_t expected, uint64_t desired,
                               uint64_t *value);

/* ---- Endpoints and completion queues ------------------------------------------------------------------------------ */

/* Operations, as completions name them. */
#define PLEXUS_SEND 1
#define PLEXUS_RECEIVE 2
#define PLEXUS_PUT 3
#define PLEXUS_GET 4
#define PLEXUS_FETCH_ADD 5
#define PLEXUS_COMPARE_SWAP 6

/* The end of something that was posted. */
typedef struct plexus_completion {
    uint64_t cookie;     /* what it was posted with */
    uint64_t value;      /* the word as it was before, where one was changed */
    uint64_t length;     /* bytes that came, where some did */
    plexus_address from; /* who sent them, for PLEXUS_RECEIVE */
    uint32_t endpoint;   /* the port of the endpoint */
    uint32_t operation;
    int32_t status;      /* PLEXUS_OK, or why it was not done */
    uint32_t reserved;
} plexus_completion;

/* A queue for completions, and how threads wait for them. */
int plexus_cq_create(const plexus_client *client, int mode, plexus_cq **queue);
void plexus_cq_destroy(plexus_cq *queue);

/* Takes the oldest completion (limit 0: polls). What came with it is written to into as far as there is room. */
int plexus_cq_wait(const plexus_cq *queue, plexus_completion *completion, void *into, size_t room, int64_t limit_us);

/* An endpoint at a port of this node (0: any that is free) whose completions go to queue. */
int plexus_endpoint_create(const plexus_client *client, uint32_t number, const plexus_cq *queue,
                           plexus_endpoint **endpoint);
/* Receives that are posted to it, and sends that were not taken or still wait for room, then never complete. */
void plexus_endpoint_destroy(plexus_endpoint *endpoint);

/* Where others send to; where plexus_post_send sends to from now on. */
int plexus_endpoint_address(const plexus_endpoint *endpoint, plexus_address *address);
int plexus_endpoint_connect(const plexus_endpoint *endpoint, plexus_address peer);

/* Offers room for one message of up to length bytes; the oldest room is filled first. What is longer is cut off, and the
 * completion says PLEXUS_E_TOO_LONG. */
int plexus_post_receive(const plexus_endpoint *endpoint, uint64_t cookie, size_t length);

/* Sends a message, whose bytes may be used again when the call returns. It completes when it was put into a receive. */
int plexus_post_send(const plexus_endpoint *endpoint, uint64_t cookie, const void *message, size_t length);
int plexus_post_send_to(const plexus_endpoint *endpoint, uint64_t cookie, plexus_address to, const void *message,
                        size_t length);

/* The accesses to windows, posted; up to PLEXUS_MAX_MESSAGE bytes each. */
int plexus_post_put(const plexus_endpoint *endpoint, uint64_t cookie, const plexus_window *window, uint64_t offset,
                    const void *data, size_t length);
int plexus_post_get(const plexus_endpoint *endpoint, uint64_t cookie, const plexus_window *window, uint64_t offset,
                    size_t length);
int plexus_post_fetch_add(const plexus_endpoint *endpoint, uint64_t cookie, const plexus_window *window,
                          uint64_t offset, uint64_t add);
int plexus_post_compare_swap(const plexus_endpoint *endpoint, uint64_t cookie, const plexus_window *window,
                             uint64_t offset, uint64_t expected, uint64_t desired);

/* ---- Locks -------------------------------------------------------------------------------------------------------- */

/* In the shape that programs know from libdlm: a request is posted, its end is found in a status block, and completion and
 * blocking routines run in whoever calls plexus_dispatch. Of all programs on all nodes, those that lock a name in modes
 * that exclude each other have it one after the other, each with a token greater than those of all that it excludes. What a
 * program holds when it ends, in whatever way, is released at once; a value block that it could have written is then not
 * valid. */

/* Modes: null, concurrent read, concurrent write, protected read, protected write, exclusive. */
#define PLEXUS_LKM_NLMODE 0
#define PLEXUS_LKM_CRMODE 1
#define PLEXUS_LKM_CWMODE 2
#define PLEXUS_LKM_PRMODE 3
#define PLEXUS_LKM_PWMODE 4
#define PLEXUS_LKM_EXMODE 5

/* Flags of requests. */
#define PLEXUS_LKF_NOQUEUE 1     /* now or not at all, whatever the limit of time says */
#define PLEXUS_LKF_CANCEL 2      /* plexus_unlock: end what is asked for the lock; the lock itself stays as it was */
#define PLEXUS_LKF_CONVERT 4     /* lksb->lkid is held, and wanted in another mode */
#define PLEXUS_LKF_VALBLK 8      /* the value block: see lvb */
#define PLEXUS_LKF_FORCEUNLOCK 16 /* plexus_unlock: also a lock that is waited for or being converted */

/* Flags of status blocks. */
#define PLEXUS_SBF_VALNOTVALID 1 /* what the value block was last is not known: who could write it died */
#define PLEXUS_SBF_UNWRITTEN 2   /* nobody has written it since somebody locked what nobody had locked */

/* Length of a value block, and of the longest name. */
#define PLEXUS_LVB_LEN 32
#define PLEXUS_RESNAME_MAX 255

/* How a request stands. It belongs to the library from the call until its end. */
typedef struct plexus_lksb {
    int32_t status;     /* PLEXUS_E_IN_PROGRESS; then PLEXUS_OK: granted; PLEXUS_E_UNLOCKED: given up; or why not */
    uint32_t lkid;      /* the lock, from the call on */
    uint32_t flags;     /* of the value block, after a grant */
    uint32_t reserved;
    uint64_t token;     /* after a grant: greater than those of all grants that it excludes */
    unsigned char *lvb; /* with PLEXUS_LKF_VALBLK: PLEXUS_LVB_LEN bytes, filled by a grant; written from by an unlock
                         * from PW or EX, and by a conversion from these to a mode that excludes no more */
} plexus_lksb;

/* A place for locks. All of one place are one piece of work to the search for deadlocks: who waits is taken to release nothing until it is
 * answered, so programs that do several things at once open several. Closing it gives all of its locks up; requests then never end. */
int plexus_lockspace_open(const plexus_client *client, plexus_lockspace **place);
void plexus_lockspace_close(plexus_lockspace *place);

/* Asks for a lock, or to convert one. When it is granted or refused, lksb says so, and plexus_dispatch calls completed(argument);
 * blocking(argument) when others wait for the lock, once for each grant. Either may be null. */
int plexus_lock(const plexus_lockspace *place, uint32_t mode, plexus_lksb *lksb, uint32_t flags, const void *name,
                size_t name_length, int64_t limit_us, void (*completed)(void *argument), void *argument,
                void (*blocking)(void *argument));

/* The same, waiting for the end, whose status it returns. */
int plexus_lock_wait(const plexus_lockspace *place, uint32_t mode, plexus_lksb *lksb, uint32_t flags, const void *name,
                     size_t name_length, int64_t limit_us, void *argument, void (*blocking)(void *argument));

/* Gives a lock up, or with PLEXUS_LKF_CANCEL what is asked for it. At the end of an unlock plexus_dispatch calls what the lock was
 * last asked for with, with this argument. A cancelled request ends as it would, or with PLEXUS_E_CANCELLED. With
 * PLEXUS_LKF_FORCEUNLOCK a posted request has no end but that of the unlock, and a call of plexus_lock_wait ends with
 * PLEXUS_E_CANCELLED, or as it would if it ended just before; its status block is its own, so the unlock then takes another. */
int plexus_unlock(const plexus_lockspace *place, uint32_t lkid, uint32_t flags, plexus_lksb *lksb, void *argument);

/* Gives a lock up; nothing is called. */
int plexus_unlock_wait(const plexus_lockspace *place, uint32_t lkid, uint32_t flags, plexus_lksb *lksb);

/* Sees to what has happened to locks of the place, and calls the routines that it is for, which may use the library: how many. Wait for
 * plexus_fd of the client (after plexus_arm) before the next. When nothing more is to be called: PLEXUS_E_LOCKS_LOST,
 * PLEXUS_E_NODE_LOST if no lock protects anything any more. */
int plexus_dispatch(const plexus_lockspace *place);

#ifdef __cplusplus
}
#endif

#endif
