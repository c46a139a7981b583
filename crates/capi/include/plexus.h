/*
 * plexus.h - the C interface for client programs of a Plexus cluster.
 *
 * A program attaches to the node that runs on its machine. It can then send reliable datagrams to
 * programs of every node, call and answer, share windows of memory, and lock. Operations can also be
 * posted, with completion queues.
 *
 * Build the library with "cargo build --release -p plexus-capi". Compile and link a program with:
 *   cc program.c -I crates/capi/include -L target/release -lplexus -Wl,-rpath,$PWD/target/release
 *
 * Results. A function that returns int returns PLEXUS_OK (0) or a negative code that plexus_strerror
 * explains. Some functions return a result above zero, as their comment says. plexus_last_error has
 * the full reason of the calling thread's last failure. Handles are written only on success. Ending a
 * handle twice is harmless; it is PLEXUS_E_ARGUMENT if the function returns a result.
 *
 * Time limits are in microseconds. A negative limit waits forever; 0 does not wait.
 *
 * Threads. Any thread may call any function at any time. Several threads may use one handle. A
 * blocking call blocks only its caller. There are two exceptions. A handle may be ended (detach,
 * unbind, close, destroy, stop_serving) only when no thread uses it. Only one thread at a time may
 * wait on plexus_fd; others may be in calls that wait. The library starts no thread: posted operations
 * make progress while a thread is in a call of their client. After fork, only the parent may use the
 * library.
 *
 * The node. When the program's node ends, calls return PLEXUS_E_NODE_LOST. A call notices a node that was
 * killed within a few milliseconds, and a node that stands still when the lease of the node ends. plexus_fd
 * becomes readable then. No call waits longer.
 *
 * Lifetime. Handles may be ended in any order. When a program ends, in whatever way, everything that
 * it holds is released at once.
 *
 * Messages and accesses have at most PLEXUS_MAX_MESSAGE bytes unless their comment says otherwise.
 */
#ifndef PLEXUS_H
#define PLEXUS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It must equal the result of plexus_abi_version. */
#define PLEXUS_ABI_VERSION 1

/* The length of the longest message, in bytes. */
#define PLEXUS_MAX_MESSAGE 65536

/* No time limit. */
#define PLEXUS_FOREVER (-1)

/* Results. */
#define PLEXUS_OK 0
#define PLEXUS_E_ATTACH (-1)        /* cannot attach to a node */
#define PLEXUS_E_NODE_LOST (-2)     /* the program's node ended or detached it: attach again */
#define PLEXUS_E_NODE_GONE (-3)     /* the other node is down or does not exist */
#define PLEXUS_E_PORT_CLOSED (-4)   /* no program has that port open */
#define PLEXUS_E_UNDELIVERED (-5)   /* earlier messages were not received and are lost */
#define PLEXUS_E_TAKEN (-6)         /* the port or name is in use */
#define PLEXUS_E_TIMED_OUT (-7)     /* the time limit has passed */
#define PLEXUS_E_BUSY (-8)          /* a limit is reached */
#define PLEXUS_E_TOO_LONG (-9)      /* longer than the longest message or than the posted buffer */
#define PLEXUS_E_NO_ROOM (-10)      /* a node has too little window memory left */
#define PLEXUS_E_NO_WINDOW (-11)    /* the window does not exist or was closed */
#define PLEXUS_E_OUT_OF_RANGE (-12) /* outside the window, or not an aligned word */
#define PLEXUS_E_ARGUMENT (-13)     /* an argument is not valid */
#define PLEXUS_E_SYSTEM (-14)       /* a system call failed */
#define PLEXUS_E_NOT_GRANTED (-15)  /* the lock is not free and the request does not wait */
#define PLEXUS_E_CANCELLED (-16)    /* the lock request was cancelled */
#define PLEXUS_E_DEADLOCK (-17)     /* deadlock victim: release all locks and start again */
#define PLEXUS_E_NO_LOCK (-18)      /* no lock has that number */
#define PLEXUS_E_IN_PROGRESS (-19)  /* the lock request is not answered yet */
#define PLEXUS_E_NOT_WRITER (-20)   /* only a holder in PW or EX may write the value block */
#define PLEXUS_E_LOCKS_LOST (-21)   /* the cluster stopped: all locks are lost */
#define PLEXUS_E_UNLOCKED (-22)     /* a status: the lock was released */

/* Waiting modes. */
#define PLEXUS_ADAPTIVE 0 /* poll for a short time, then sleep */
#define PLEXUS_POLLING 1  /* never sleep: the lowest latency, a core for each waiting thread */
#define PLEXUS_EVENT 2    /* sleep at once: the least CPU */

/* A port of a node. Datagrams, calls and endpoints have separate ports. Programs may choose ports from
 * 1 to 2^31 - 1. */
typedef struct plexus_address {
    uint32_t node;
    uint32_t port;
} plexus_address;

typedef struct plexus_client plexus_client;     /* an attachment to the local node */
typedef struct plexus_port plexus_port;         /* a port for datagrams */
typedef struct plexus_server plexus_server;     /* a port that answers calls */
typedef struct plexus_request plexus_request;   /* a received call without an answer yet */
typedef struct plexus_window plexus_window;     /* named memory of a node */
typedef struct plexus_cq plexus_cq;             /* a completion queue */
typedef struct plexus_endpoint plexus_endpoint; /* a port for posted work */
typedef struct plexus_lockspace plexus_lockspace; /* locks of one session */

/* Returns the interface version of the library. */
uint32_t plexus_abi_version(void);

/* Returns the meaning of a code; never null. */
const char *plexus_strerror(int code);

/* Returns the full reason of this thread's last failure, or an empty text if there was none. The text is
 * valid until the thread's next failure. */
const char *plexus_last_error(void);

/* ---- Attaching ---------------------------------------------------------------------------------------------------- */

/* Attaches to the node whose socket is path (run/NAME.attach in a cluster's directory), or, if path is a cluster's
 * directory, to the first node of that cluster that runs on this machine. */
int plexus_attach(const char *path, plexus_client **client);

/* Ends the attachment once all handles made from it have ended too. */
void plexus_detach(plexus_client *client);

/* plexus_node returns the node that the program is attached to. plexus_nodes returns the number that
 * follows the highest node number at the time of attaching; nodes that were added later can be reached too. */
int plexus_node(const plexus_client *client);
int plexus_nodes(const plexus_client *client);

/* Sets the waiting mode for calls of this client, except those on completion queues. The default is
 * PLEXUS_ADAPTIVE. */
int plexus_set_waiting(const plexus_client *client, int mode);

/* plexus_fd returns a descriptor for poll and epoll, which belongs to the client. After plexus_arm has
 * returned 1, the descriptor becomes readable when an event may have arrived. plexus_arm returns 0 if
 * events are waiting: take them all (with a limit of 0), then arm again. All ports and queues of the
 * client count, also those that other threads serve. */
int plexus_fd(const plexus_client *client);
int plexus_arm(const plexus_client *client);

/* ---- Reliable datagrams ------------------------------------------------------------------------------------------- */

/* Messages keep their boundaries. Each arrives once and, from one port to another, in the order sent. Up
 * to 64 messages and 256 KiB may be in flight from one port to another; then the sender waits until the
 * receiver has taken some. */

/* Opens a port of this node; 0 chooses any free one. plexus_unbind closes it. */
int plexus_bind(const plexus_client *client, uint32_t number, plexus_port **port);
void plexus_unbind(plexus_port *port);

/* Returns the address that other programs send to. */
int plexus_port_address(const plexus_port *port, plexus_address *address);

/* Sends a message. PLEXUS_E_UNDELIVERED means that earlier messages to that port are lost, because its
 * owner closed it or ended. This message was then not sent; the next one will be. */
int plexus_send(const plexus_port *port, plexus_address to, const void *message, size_t length, int64_t limit_us);

/* Receives the next message and returns its length. Bytes that do not fit into room are lost. from may
 * be null. A message counts as taken when the program next calls the library. */
ssize_t plexus_receive(const plexus_port *port, void *into, size_t room, plexus_address *from, int64_t limit_us);

/* Waits until the receivers have taken all messages sent from the port. */
int plexus_settle(const plexus_port *port, int64_t limit_us);

/* ---- Calls -------------------------------------------------------------------------------------------------------- */

/* Opens a port of this node that answers calls; 0 chooses any free one. When it is closed, waiting
 * callers get an error. */
int plexus_serve(const plexus_client *client, uint32_t number, plexus_server **server);
void plexus_stop_serving(plexus_server *server);

/* Returns the address that other programs call. */
int plexus_server_address(const plexus_server *server, plexus_address *address);

/* Takes the next call, which plexus_reply or plexus_refuse ends. */
int plexus_next_request(const plexus_server *server, plexus_request **request, int64_t limit_us);

/* plexus_request_bytes returns the request, valid until the call is ended. plexus_request_node returns
 * the node of the caller. */
const void *plexus_request_bytes(const plexus_request *request, size_t *length);
int plexus_request_node(const plexus_request *request);

/* Answers a call, or refuses to answer it. Both end the handle, even if they fail. */
int plexus_reply(plexus_request *request, const void *answer, size_t length);
void plexus_refuse(plexus_request *request);

/* Calls a port and returns the length of the answer; bytes that do not fit into answer_room are lost.
 * After PLEXUS_E_NODE_GONE, PLEXUS_E_PORT_CLOSED and PLEXUS_E_TIMED_OUT the request may or may not have
 * been carried out. */
ssize_t plexus_call(const plexus_client *client, plexus_address to, const void *request, size_t request_length,
                    void *answer, size_t answer_room, int64_t limit_us);

/* ---- Windows ------------------------------------------------------------------------------------------------------ */

/* The home of a window is the node of the program that created it. Accesses are done there one after the
 * other. A node whose programs map the window keeps a copy that they read in place. Changes reach all
 * copies in one order; put, fetch_add and compare_swap return when their change has reached every copy.
 * Words have 8 bytes, little endian, at offsets that are multiples of 8. Changes of words are atomic. */

/* Creates a window of zeros under a name of 1 to 64 bytes, unique on this node. The length is a multiple
 * of 8 bytes. Closing the handle ends the window. The creator has it mapped from the start. A window lies
 * in one worker's share of the node's window memory: with 8 workers and 16 MiB it has at most 2 MiB. */
int plexus_window_create(const plexus_client *client, const char *name, uint64_t length, plexus_window **window);

/* plexus_window_open opens a window of a node by its name. plexus_window_find searches all nodes for the
 * name. */
int plexus_window_open(const plexus_client *client, uint32_t node, const char *name, plexus_window **window);
int plexus_window_find(const plexus_client *client, const char *name, plexus_window **window);
void plexus_window_close(plexus_window *window);

/* Returns the length of the window, and its home node. */
uint64_t plexus_window_length(const plexus_window *window);
int plexus_window_home(const plexus_window *window);

/* plexus_window_map makes this node keep a copy. After that, plexus_window_read reads bytes of it and
 * plexus_window_load a word. plexus_window_wait waits until a word differs from old and returns it in
 * value. */
int plexus_window_map(const plexus_window *window);
int plexus_window_read(const plexus_window *window, uint64_t offset, void *into, size_t length);
int plexus_window_load(const plexus_window *window, uint64_t offset, uint64_t *value);
int plexus_window_wait(const plexus_window *window, uint64_t offset, uint64_t old, uint64_t *value, int64_t limit_us);

/* Accesses at the home, for mapped and unmapped windows: read and write any length, add to a word, and set
 * a word to desired if it equals expected. value receives the previous word. */
int plexus_window_get(const plexus_window *window, uint64_t offset, void *into, size_t length);
int plexus_window_put(const plexus_window *window, uint64_t offset, const void *data, size_t length);
int plexus_window_fetch_add(const plexus_window *window, uint64_t offset, uint64_t add, uint64_t *value);
int plexus_window_compare_swap(const plexus_window *window, uint64_t offset, uint64_t expected, uint64_t desired,
                               uint64_t *value);

/* ---- Endpoints and completion queues ------------------------------------------------------------------------------ */

/* Operations in completions. */
#define PLEXUS_SEND 1
#define PLEXUS_RECEIVE 2
#define PLEXUS_PUT 3
#define PLEXUS_GET 4
#define PLEXUS_FETCH_ADD 5
#define PLEXUS_COMPARE_SWAP 6

/* The end of a posted operation. */
typedef struct plexus_completion {
    uint64_t cookie;     /* the cookie given when posting */
    uint64_t value;      /* the previous word, if a word was changed */
    uint64_t length;     /* the number of bytes received */
    plexus_address from; /* the sender, for PLEXUS_RECEIVE */
    uint32_t endpoint;   /* the port of the endpoint */
    uint32_t operation;
    int32_t status;      /* PLEXUS_OK, or the reason of the failure */
    uint32_t reserved;
} plexus_completion;

/* Creates a queue for completions, with the waiting mode of its readers. */
int plexus_cq_create(const plexus_client *client, int mode, plexus_cq **queue);
void plexus_cq_destroy(plexus_cq *queue);

/* Takes the oldest completion; a limit of 0 polls. Received bytes are written to into as far as they fit. */
int plexus_cq_wait(const plexus_cq *queue, plexus_completion *completion, void *into, size_t room, int64_t limit_us);

/* Creates an endpoint at a port of this node (0 chooses any free one). Its completions go to queue. */
int plexus_endpoint_create(const plexus_client *client, uint32_t number, const plexus_cq *queue,
                           plexus_endpoint **endpoint);
/* Destroys an endpoint. Its posted receives, and its sends that were not received yet, never complete. */
void plexus_endpoint_destroy(plexus_endpoint *endpoint);

/* plexus_endpoint_address returns the address that others send to. plexus_endpoint_connect sets the
 * address that plexus_post_send sends to. */
int plexus_endpoint_address(const plexus_endpoint *endpoint, plexus_address *address);
int plexus_endpoint_connect(const plexus_endpoint *endpoint, plexus_address peer);

/* Posts a buffer for one message of up to length bytes; the oldest buffer is filled first. A longer
 * message is cut off, and its completion has the status PLEXUS_E_TOO_LONG. */
int plexus_post_receive(const plexus_endpoint *endpoint, uint64_t cookie, size_t length);

/* Sends a message. Its bytes may be used again when the call returns. The send completes when a posted
 * receive has taken the message. */
int plexus_post_send(const plexus_endpoint *endpoint, uint64_t cookie, const void *message, size_t length);
int plexus_post_send_to(const plexus_endpoint *endpoint, uint64_t cookie, plexus_address to, const void *message,
                        size_t length);

/* Post accesses to windows, of up to PLEXUS_MAX_MESSAGE bytes each. */
int plexus_post_put(const plexus_endpoint *endpoint, uint64_t cookie, const plexus_window *window, uint64_t offset,
                    const void *data, size_t length);
int plexus_post_get(const plexus_endpoint *endpoint, uint64_t cookie, const plexus_window *window, uint64_t offset,
                    size_t length);
int plexus_post_fetch_add(const plexus_endpoint *endpoint, uint64_t cookie, const plexus_window *window,
                          uint64_t offset, uint64_t add);
int plexus_post_compare_swap(const plexus_endpoint *endpoint, uint64_t cookie, const plexus_window *window,
                             uint64_t offset, uint64_t expected, uint64_t desired);

/* ---- Locks -------------------------------------------------------------------------------------------------------- */

/* The interface follows libdlm. A request is posted, its result is found in a status block, and completion
 * and blocking routines run in the thread that calls plexus_dispatch. Programs on all nodes that lock a
 * name in incompatible modes get it one after the other. Each grant has a token greater than those of all
 * grants that it excludes. When a program ends, in whatever way, its locks are released at once. A value
 * block that it could have written is then not valid. */

/* Modes: null, concurrent read, concurrent write, protected read, protected write, exclusive. */
#define PLEXUS_LKM_NLMODE 0
#define PLEXUS_LKM_CRMODE 1
#define PLEXUS_LKM_CWMODE 2
#define PLEXUS_LKM_PRMODE 3
#define PLEXUS_LKM_PWMODE 4
#define PLEXUS_LKM_EXMODE 5

/* Flags of requests. */
#define PLEXUS_LKF_NOQUEUE 1     /* grant at once or fail, whatever the time limit */
#define PLEXUS_LKF_CANCEL 2      /* plexus_unlock: cancel the request; a held lock stays */
#define PLEXUS_LKF_CONVERT 4     /* convert the lock lksb->lkid to another mode */
#define PLEXUS_LKF_VALBLK 8      /* use the value block: see lvb */
#define PLEXUS_LKF_FORCEUNLOCK 16 /* plexus_unlock: also a waiting or converting lock */

/* Flags of status blocks. */
#define PLEXUS_SBF_VALNOTVALID 1 /* the value block is lost: a program that could write it died */
#define PLEXUS_SBF_UNWRITTEN 2   /* the value block was not written since the resource was first locked */

/* The length of a value block, and of the longest name. */
#define PLEXUS_LVB_LEN 32
#define PLEXUS_RESNAME_MAX 255

/* The status of a request. The block belongs to the library from the call until the end of the request. */
typedef struct plexus_lksb {
    int32_t status;     /* PLEXUS_E_IN_PROGRESS, then PLEXUS_OK (granted), PLEXUS_E_UNLOCKED or an error */
    uint32_t lkid;      /* the number of the lock, set by the call */
    uint32_t flags;     /* state of the value block, after a grant */
    uint32_t reserved;
    uint64_t token;     /* after a grant: greater than the tokens of all grants that it excludes */
    unsigned char *lvb; /* with PLEXUS_LKF_VALBLK: PLEXUS_LVB_LEN bytes. A grant fills them. An unlock
                         * from PW or EX, and a conversion from these to a weaker mode, write them
                         * to the resource. */
} plexus_lksb;

/* Opens a lockspace: a session of locks. The deadlock search treats all its locks as one session, which
 * releases nothing while it waits. Programs that do several things at once should open several. Closing a
 * lockspace releases all its locks; its pending requests then never end. */
int plexus_lockspace_open(const plexus_client *client, plexus_lockspace **place);
void plexus_lockspace_close(plexus_lockspace *place);

/* Requests a lock or a conversion. When it is granted or refused, lksb has the result and plexus_dispatch
 * calls completed(argument). When others wait for the lock, it calls blocking(argument), once for each
 * grant. Either routine may be null. */
int plexus_lock(const plexus_lockspace *place, uint32_t mode, plexus_lksb *lksb, uint32_t flags, const void *name,
                size_t name_length, int64_t limit_us, void (*completed)(void *argument), void *argument,
                void (*blocking)(void *argument));

/* Requests a lock or a conversion, waits for the end and returns its status. If the node stands still, the
 * call returns PLEXUS_E_TIMED_OUT 0.1 s after the limit. A new lock is then given up. A conversion is
 * cancelled: until the node has answered, use the lock only for what both modes allow. */
int plexus_lock_wait(const plexus_lockspace *place, uint32_t mode, plexus_lksb *lksb, uint32_t flags, const void *name,
                     size_t name_length, int64_t limit_us, void *argument, void (*blocking)(void *argument));

/* Releases a lock, or with PLEXUS_LKF_CANCEL cancels its request. At the end of an unlock plexus_dispatch
 * calls the completion routine of the last request, with this argument. A cancelled request ends normally
 * or with PLEXUS_E_CANCELLED. With PLEXUS_LKF_FORCEUNLOCK a posted request ends only with the unlock. A
 * call of plexus_lock_wait then ends with PLEXUS_E_CANCELLED, or normally if it ended just before; its
 * status block is in use, so the unlock needs another one. */
int plexus_unlock(const plexus_lockspace *place, uint32_t lkid, uint32_t flags, plexus_lksb *lksb, void *argument);

/* Releases a lock and waits for the end; no routine is called. With a value block the end is when the
 * lock's master has the value. */
int plexus_unlock_wait(const plexus_lockspace *place, uint32_t lkid, uint32_t flags, plexus_lksb *lksb);

/* Handles the events of the lockspace: calls their routines, which may use the library, and returns how
 * many it called. Wait for plexus_fd of the client (after plexus_arm) before the next call. If no routine
 * is left to call and all locks are lost, returns PLEXUS_E_LOCKS_LOST or PLEXUS_E_NODE_LOST. */
int plexus_dispatch(const plexus_lockspace *place);

#ifdef __cplusplus
}
#endif

#endif
