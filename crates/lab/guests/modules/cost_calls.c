// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Two system calls for `tollgate cost --system-calls`: one makes the marked hypercall, from which the
 * monitor returns at once, and one does nothing. The kernel's table of system calls is not open to
 * modules, so they are two ioctl commands of /proc/cost_calls. Both take the same way through the kernel,
 * so their difference is that of two system calls of their own.
 */
#include <linux/ioctl.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/proc_fs.h>

/* The hypercall null, see docs/reference/hypercalls.md. */
#define HYPERCALL_NULL 0x544f4c00
/* The same numbers are in linux-two-calls.S. */
#define CALL_NOTHING 0x7401
#define CALL_MARKED 0x7402

static long cost_calls_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	switch (command) {
	case CALL_NOTHING:
		return 0;
	case CALL_MARKED:
		/* VMCALL; Tollgate takes it on processors of every maker, and changes no register. */
		asm volatile(".byte 0x0f, 0x01, 0xc1" : : "a"(HYPERCALL_NULL) : "memory");
		return 0;
	default:
		return -ENOTTY;
	}
}

static const struct proc_ops cost_calls_ops = {
	.proc_ioctl = cost_calls_ioctl,
	.proc_lseek = noop_llseek,
};

static int __init cost_calls_init(void)
{
	return proc_create("cost_calls", 0600, NULL, &cost_calls_ops) ? 0 : -ENOMEM;
}
module_init(cost_calls_init);

static void __exit cost_calls_exit(void)
{
	remove_proc_entry("cost_calls", NULL);
}
module_exit(cost_calls_exit);

MODULE_DESCRIPTION("a system call that makes a hypercall, and one that does nothing");
MODULE_LICENSE("Dual MIT/GPL");
