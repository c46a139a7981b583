/* Attaches again and again while a timer interrupts every system call. */
#include <plexus.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static volatile sig_atomic_t interrupts;

static void count(int signal)
{
    (void)signal;
    interrupts++;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = count};
    struct itimerval every = {{0, 200}, {0, 200}};
    if (argc != 2 || sigaction(SIGALRM, &action, NULL) < 0 || setitimer(ITIMER_REAL, &every, NULL) < 0)
        return 2;
    for (int round = 0; round < 200; round++) {
        plexus_client *client;
        if (plexus_attach(argv[1], &client) < 0) {
            fprintf(stderr, "attach %d: %s\n", round, plexus_last_error());
            return 1;
        }
        plexus_detach(client);
    }
    printf("%s\n", interrupts > 200 ? "attached" : "no signals");
    return 0;
}
