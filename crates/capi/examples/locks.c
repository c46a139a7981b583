/*
 * Locks: programs that pass a lock to each other, and all other operations on locks.
 *
 *     cc locks.c -lplexus -o locks
 *     ./locks hold c1/run/n1.attach     holds a lock until another program requests it; writes its value block
 *     ./locks wait c1/run/n2.attach     waits for the lock and prints its value block
 *     ./locks keep c1/run/n1.attach     holds the lock until it is killed
 *     ./locks tour c1/run/n1.attach c1/run/n2.attach
 */
#include <plexus.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void note(void *flag)
{
    ++*(int *)flag;
}

/* Dispatches until a routine has counted an event. */
static void until(plexus_client *client, plexus_lockspace *place, const int *counted)
{
    while (!*counted) {
        must(plexus_dispatch(place), "dispatch");
        if (!*counted && plexus_arm(client)) {
            struct pollfd ready = {.fd = plexus_fd(client), .events = POLLIN};
            expect(poll(&ready, 1, 60000) == 1, "an event arrives");
        }
    }
}

struct held {
    int ended, wanted;
};

static void ended(void *held)
{
    ((struct held *)held)->ended++;
}

static void wanted(void *held)
{
    ((struct held *)held)->wanted++;
}

static void hold(plexus_client *client, plexus_lockspace *place)
{
    unsigned char value[PLEXUS_LVB_LEN] = "a word";
    plexus_lksb block = {.lvb = value};
    struct held held = {0, 0};
    must(plexus_lock(place, PLEXUS_LKM_EXMODE, &block, 0, "baton", 5, PLEXUS_FOREVER, ended, &held, wanted), "lock");
    until(client, place, &held.ended);
    must(block.status, "the end of the request");
    printf("granted %llu\n", (unsigned long long)block.token);
    until(client, place, &held.wanted);
    puts("wanted");
    held.ended = 0;
    must(plexus_unlock(place, block.lkid, PLEXUS_LKF_VALBLK, &block, &held), "unlock");
    until(client, place, &held.ended);
    expect(block.status == PLEXUS_E_UNLOCKED, "the status after an unlock");
    puts("unlocked");
}

static void wait_for_it(plexus_lockspace *place)
{
    unsigned char value[PLEXUS_LVB_LEN];
    plexus_lksb block = {.lvb = value};
    must(plexus_lock_wait(place, PLEXUS_LKM_PWMODE, &block, PLEXUS_LKF_VALBLK, "baton", 5, SECONDS(60), NULL, NULL), "lock");
    printf("granted %llu %s%s\n", (unsigned long long)block.token, (char *)value,
           block.flags & PLEXUS_SBF_VALNOTVALID ? " perhaps" : "");
    must(plexus_unlock_wait(place, block.lkid, 0, &block), "unlock");
}

static void keep(plexus_lockspace *place)
{
    unsigned char value[PLEXUS_LVB_LEN] = "before";
    plexus_lksb block = {.lvb = value};
    must(plexus_lock_wait(place, PLEXUS_LKM_EXMODE, &block, 0, "baton", 5, SECONDS(60), NULL, NULL), "lock");
    must(plexus_lock_wait(place, PLEXUS_LKM_PWMODE, &block, PLEXUS_LKF_CONVERT | PLEXUS_LKF_VALBLK, NULL, 0, SECONDS(60), NULL,
                          NULL),
         "convert");
    puts("granted");
    fflush(stdout);
    for (;;)
        pause();
}

struct conversion {
    plexus_lockspace *place;
    plexus_lksb block;
    int result;
};

static void *convert(void *conversion)
{
    struct conversion *c = conversion;
    c->result =
        plexus_lock_wait(c->place, PLEXUS_LKM_EXMODE, &c->block, PLEXUS_LKF_CONVERT, NULL, 0, PLEXUS_FOREVER, NULL, NULL);
    return NULL;
}

/* Releases a lock while a request for it is pending. */
static void force(plexus_client *one, plexus_lockspace *here, plexus_client *two, plexus_lockspace *there)
{
    plexus_lksb a = {0}, b = {0}, other = {0};
    int done = 0, wanted = 0;
    must(plexus_lock(here, PLEXUS_LKM_EXMODE, &a, 0, "f", 1, PLEXUS_FOREVER, note, &done, NULL), "EX");
    must(plexus_lock_wait(here, PLEXUS_LKM_NLMODE, &b, 0, "f", 1, PLEXUS_FOREVER, NULL, NULL), "NL, which is granted later");
    expect(a.status == PLEXUS_E_IN_PROGRESS && done == 0, "no thread has dispatched");
    must(plexus_unlock(here, a.lkid, PLEXUS_LKF_FORCEUNLOCK, &a, &done), "unlock a granted lock");
    until(one, here, &done);
    expect(a.status == PLEXUS_E_UNLOCKED && done == 1, "one end for both");

    pthread_t thread;
    struct conversion c = {.place = here, .block = b};
    must(plexus_lock_wait(there, PLEXUS_LKM_PRMODE, &a, 0, "f", 1, PLEXUS_FOREVER, &wanted, note), "PR");
    expect(pthread_create(&thread, NULL, convert, &c) == 0, "a thread");
    until(two, there, &wanted);
    must(plexus_unlock_wait(here, b.lkid, PLEXUS_LKF_FORCEUNLOCK, &other), "unlock a lock that another thread converts");
    expect(pthread_join(thread, NULL) == 0, "the end of the request");
    expect(c.result == PLEXUS_E_CANCELLED && c.block.status == PLEXUS_E_CANCELLED, "the thread gets the result");
    must(plexus_unlock_wait(there, a.lkid, 0, &a), "unlock");
}

/* Makes every kind of request and checks its end. */
static void tour(plexus_client *one, plexus_lockspace *here, plexus_lockspace *there)
{
    plexus_lksb a = {0}, b = {0}, c = {0};
    unsigned char value[PLEXUS_LVB_LEN] = "written on the way down", read[PLEXUS_LVB_LEN] = {0};
    int done = 0, wanted = 0;
    must(plexus_lock_wait(here, PLEXUS_LKM_EXMODE, &a, 0, "a", 1, SECONDS(60), NULL, NULL), "EX");
    expect(a.flags == PLEXUS_SBF_UNWRITTEN && a.token > 0 && a.lkid > 0, "a first grant");
    expect(plexus_lock_wait(there, PLEXUS_LKM_CRMODE, &b, PLEXUS_LKF_NOQUEUE, "a", 1, PLEXUS_FOREVER, NULL, NULL) ==
               PLEXUS_E_NOT_GRANTED,
           "EX excludes all but NL");
    expect(plexus_lock_wait(there, PLEXUS_LKM_CRMODE, &b, 0, "a", 1, 20000, NULL, NULL) == PLEXUS_E_TIMED_OUT, "timeout ends");
    expect(b.status == PLEXUS_E_TIMED_OUT, "the status block has the same result");
    must(plexus_lock_wait(there, PLEXUS_LKM_NLMODE, &b, 0, "a", 1, 0, NULL, NULL), "NL goes with all");

    a.lvb = value;
    must(plexus_lock(here, PLEXUS_LKM_PRMODE, &a, PLEXUS_LKF_CONVERT | PLEXUS_LKF_VALBLK, NULL, 0, PLEXUS_FOREVER, note, &done,
                     NULL),
         "to PR");
    expect(plexus_lock(here, PLEXUS_LKM_CRMODE, &a, PLEXUS_LKF_CONVERT, NULL, 0, 0, NULL, NULL, NULL) == PLEXUS_E_IN_PROGRESS,
           "one request at a time");
    until(one, here, &done);
    expect(a.status == PLEXUS_OK && a.flags == 0, "the value is written");
    b.lvb = read;
    must(plexus_lock_wait(there, PLEXUS_LKM_PRMODE, &b, PLEXUS_LKF_CONVERT | PLEXUS_LKF_VALBLK, NULL, 0, SECONDS(60), NULL, NULL),
         "NL to PR");
    expect(memcmp(read, value, sizeof read) == 0 && b.flags == 0, "and read");
    expect(plexus_unlock_wait(there, b.lkid, PLEXUS_LKF_VALBLK, &b) == PLEXUS_E_NOT_WRITER, "PR writes nothing");

    /* A request waits for the lock of b and is cancelled. */
    done = 0;
    must(plexus_lock(here, PLEXUS_LKM_EXMODE, &c, 0, "a", 1, PLEXUS_FOREVER, note, &done, NULL), "EX beside readers");
    expect(plexus_unlock(here, c.lkid, 0, &c, &done) == PLEXUS_E_IN_PROGRESS, "a waiting request is not unlocked without FORCEUNLOCK");
    must(plexus_unlock(here, c.lkid, PLEXUS_LKF_CANCEL, &c, &done), "cancel");
    until(one, here, &done);
    expect(c.status == PLEXUS_E_CANCELLED, "the status of a cancelled request");
    expect(plexus_unlock_wait(here, c.lkid, 0, &c) == PLEXUS_E_NO_LOCK, "the cancelled lock does not exist");
    done = 0;
    must(plexus_lock(here, PLEXUS_LKM_EXMODE, &c, 0, "a", 1, PLEXUS_FOREVER, note, &done, NULL), "again");
    must(plexus_unlock(here, c.lkid, PLEXUS_LKF_FORCEUNLOCK, &c, &done), "unlock a waiting request");
    until(one, here, &done);
    expect(c.status == PLEXUS_E_UNLOCKED && done == 1, "one end for both");

    /* Two conversions wait for each other: the younger is refused. */
    done = 0;
    must(plexus_lock(here, PLEXUS_LKM_EXMODE, &a, PLEXUS_LKF_CONVERT, NULL, 0, PLEXUS_FOREVER, note, &done, NULL), "to EX");
    expect(plexus_lock_wait(there, PLEXUS_LKM_EXMODE, &b, PLEXUS_LKF_CONVERT, NULL, 0, PLEXUS_FOREVER, NULL, NULL) ==
               PLEXUS_E_DEADLOCK,
           "a deadlock is found");
    must(plexus_unlock_wait(there, b.lkid, 0, &b), "the victim keeps its lock until it releases it");
    until(one, here, &done);
    must(a.status, "to EX at last");
    must(plexus_lock(here, PLEXUS_LKM_PWMODE, &a, PLEXUS_LKF_CONVERT, NULL, 0, PLEXUS_FOREVER, NULL, &wanted, note), "to PW");
    expect(plexus_lock_wait(there, PLEXUS_LKM_PRMODE, &b, 0, "a", 1, 20000, NULL, NULL) == PLEXUS_E_TIMED_OUT, "PW excludes PR");
    until(one, here, &wanted);

    expect(plexus_lock(here, 6, &c, 0, "a", 1, 0, NULL, NULL, NULL) == PLEXUS_E_ARGUMENT, "no mode");
    expect(plexus_lock(here, 0, &c, 1024, "a", 1, 0, NULL, NULL, NULL) == PLEXUS_E_ARGUMENT, "no flag");
    expect(plexus_lock(here, 0, &c, 0, "", 0, 0, NULL, NULL, NULL) == PLEXUS_E_ARGUMENT, "no name");
    expect(plexus_lock(here, 0, NULL, 0, "a", 1, 0, NULL, NULL, NULL) == PLEXUS_E_ARGUMENT, "no block");
    expect(plexus_lock(here, 0, &c, PLEXUS_LKF_VALBLK, "a", 1, 0, NULL, NULL, NULL) == PLEXUS_E_ARGUMENT, "no value block");
    expect(plexus_unlock(here, 99, 0, &c, NULL) == PLEXUS_E_NO_LOCK, "no lock");
    expect(plexus_dispatch(here) == 0, "nothing more");
}

int main(int count, char **arguments)
{
    plexus_client *client, *other;
    plexus_lockspace *place, *there;
    if (count < 3)
        return 2;
    must(plexus_attach(arguments[2], &client), "attach");
    must(plexus_lockspace_open(client, &place), "a lockspace");
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(arguments[1], "hold") == 0)
        hold(client, place);
    else if (strcmp(arguments[1], "wait") == 0)
        wait_for_it(place);
    else if (strcmp(arguments[1], "keep") == 0)
        keep(place);
    else if (strcmp(arguments[1], "tour") == 0 && count == 4) {
        must(plexus_attach(arguments[3], &other), "attach");
        must(plexus_lockspace_open(other, &there), "another");
        tour(client, place, there);
        force(client, place, other, there);
        plexus_lockspace_close(there);
        plexus_detach(other);
        puts("all checks passed");
    } else
        return 2;
    plexus_lockspace_close(place);
    plexus_detach(client);
    return 0;
}
