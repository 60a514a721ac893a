/* Links every function of WASI, and calls none but to print: a program must not be refused for what it merely links. */
#include <stdio.h>
#include <wasi/api.h>

typedef void (*any)(void);

static const any all[] = {
    (any)__wasi_args_get,
    (any)__wasi_args_sizes_get,
    (any)__wasi_clock_res_get,
    (any)__wasi_clock_time_get,
    (any)__wasi_environ_get,
    (any)__wasi_environ_sizes_get,
    (any)__wasi_fd_advise,
    (any)__wasi_fd_allocate,
    (any)__wasi_fd_close,
    (any)__wasi_fd_datasync,
    (any)__wasi_fd_fdstat_get,
    (any)__wasi_fd_fdstat_set_flags,
    (any)__wasi_fd_fdstat_set_rights,
    (any)__wasi_fd_filestat_get,
    (any)__wasi_fd_filestat_set_size,
    (any)__wasi_fd_filestat_set_times,
    (any)__wasi_fd_pread,
    (any)__wasi_fd_prestat_dir_name,
    (any)__wasi_fd_prestat_get,
    (any)__wasi_fd_pwrite,
    (any)__wasi_fd_read,
    (any)__wasi_fd_readdir,
    (any)__wasi_fd_renumber,
    (any)__wasi_fd_seek,
    (any)__wasi_fd_sync,
    (any)__wasi_fd_tell,
    (any)__wasi_fd_write,
    (any)__wasi_path_create_directory,
    (any)__wasi_path_filestat_get,
    (any)__wasi_path_filestat_set_times,
    (any)__wasi_path_link,
    (any)__wasi_path_open,
    (any)__wasi_path_readlink,
    (any)__wasi_path_remove_directory,
    (any)__wasi_path_rename,
    (any)__wasi_path_symlink,
    (any)__wasi_path_unlink_file,
    (any)__wasi_poll_oneoff,
    (any)__wasi_proc_exit,
    (any)__wasi_random_get,
    (any)__wasi_sched_yield,
    (any)__wasi_sock_accept,
    (any)__wasi_sock_recv,
    (any)__wasi_sock_send,
    (any)__wasi_sock_shutdown,
};

int main(void) {
    volatile const any *kept = all;
    unsigned count = 0;
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        count += kept[i] != 0;
    }
    printf("%u functions\n", count);
    return 0;
}
