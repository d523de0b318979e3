#define _GNU_SOURCE
#include "fault_calls.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FIELD(name) ((unsigned)offsetof(struct seccomp_data, name))
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, field)
#define IF_EQUAL(value, then, otherwise) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(value), then, otherwise)
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)

/* ---- the process under test ------------------------------------------------------------------ */

static void send_descriptor(int socket, int descriptor) {
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = room;
        message.msg_controllen = sizeof(room);
        struct cmsghdr *const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    }
    if (sendmsg(socket, &message, 0) != 1) perror("sendmsg");
}

bool fault_calls_install(long call, int socket) {
    /* One call; of futex only what waits. */
    struct sock_filter one[] = {LOAD(FIELD(nr)),
                                IF_EQUAL(call, 0, 5),
                                IF_EQUAL(SYS_futex, 0, 5),
                                LOAD(FIELD(args[1])),
                                BPF_STMT(BPF_ALU | BPF_AND | BPF_K, FUTEX_CMD_MASK),
                                IF_EQUAL(FUTEX_WAIT, 2, 0),
                                IF_EQUAL(FUTEX_WAIT_BITSET, 1, 0),
                                RETURN(SECCOMP_RET_ALLOW),
                                RETURN(SECCOMP_RET_USER_NOTIF)};
    /* All; but for that by which the listener is sent. */
    struct sock_filter all[] = {LOAD(FIELD(nr)), IF_EQUAL(SYS_sendmsg, 0, 1),
                                RETURN(SECCOMP_RET_ALLOW), RETURN(SECCOMP_RET_USER_NOTIF)};
    const struct sock_fprog program = {
        .len = (unsigned short)(call < 0 ? sizeof(all) / sizeof(*all) : sizeof(one) / sizeof(*one)),
        .filter = call < 0 ? all : one};
    long listener = -1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                           &program);
    send_descriptor(socket, (int)listener);
    if (listener < 0) return false;
    close((int)listener);
    return true;
}

/* ---- its parent ------------------------------------------------------------------------------ */

int fault_calls_listener(int socket) {
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
    const struct cmsghdr *const header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS) return -1;
    int listener;
    memcpy(&listener, CMSG_DATA(header), sizeof(int));
    return listener;
}

/* Whether this call is the one that is to fail. */
static bool is_chosen(fault_board *board, int call, long *counts) {
    if (!atomic_load(&board->armed)) return false;
    if (counts && call < FAULT_MOST_CALLS) counts[call]++;
    return board->kind && board->kind->call == call && fault_board_strikes(board);
}

static void answer_one(int listener, fault_board *board, long *counts) {
    struct seccomp_notif call;
    memset(&call, 0, sizeof(call)); /* the kernel refuses anything else */
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call)) return; /* its thread has gone */
    struct seccomp_notif_resp answer = {.id = call.id};
    if (is_chosen(board, call.data.nr, counts))
        answer.error = -board->failure;
    else
        answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) && errno != ENOENT)
        perror("SECCOMP_IOCTL_NOTIF_SEND");
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool fault_calls_answer(int listener, pid_t process, fault_board *board, long *counts,
                        int limit_s) {
    const int process_file = (int)syscall(SYS_pidfd_open, process, 0);
    const int64_t end_ms = now_ms() + (int64_t)limit_s * 1000;
    bool has_ended = false;
    while (!has_ended) {
        struct pollfd files[] = {{.fd = process_file, .events = POLLIN},
                                 {.fd = listener, .events = POLLIN}};
        const int64_t left_ms = end_ms - now_ms();
        if (left_ms <= 0 || (poll(files, 2, (int)left_ms) < 0 && errno != EINTR)) break;
        has_ended = files[0].revents != 0;
        if (files[1].revents & POLLIN) answer_one(listener, board, counts);
        if (files[1].revents & (POLLHUP | POLLERR)) listener = -1; /* no thread is left */
    }
    close(process_file);
    return has_ended;
}
