// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The loop of `tollgate lab icache` inside a Linux guest: accesses the local APIC's registers through
 * the kernel's own mapping of their page. A number N that is written to the parameter `rounds`
 * makes it do N rounds of six accesses, the same as those of `apic-loop.S`:
 *
 *     insmod apic_loop.ko
 *     echo 1000 >/sys/module/apic_loop/parameters/rounds
 *     cat /sys/module/apic_loop/parameters/result
 *
 * prints `accesses=6000 sum=S cycles=C`: S is the sum of the version register's low bytes, and C the
 * cycles of the time-stamp counter from the first access to after the last one.
 */
#include <linux/io.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <asm/apic.h>
#include <asm/msr.h>
#include <asm/pgtable.h>

#define ACCESSES_PER_ROUND 6

static unsigned long long accesses, sum, cycles;

static u32 apic_get(u32 reg)
{
	return readl((void __iomem *)(APIC_BASE + reg));
}

static void apic_set(u32 reg, u32 value)
{
	writel(value, (void __iomem *)(APIC_BASE + reg));
}

static noinline void run(unsigned int rounds)
{
	unsigned long long begin;
	unsigned int round;

	sum = 0;
	begin = rdtsc_ordered();
	for (round = 0; round < rounds; round++) {
		sum += apic_get(APIC_LVR) & 0xff;
		apic_set(APIC_TASKPRI, apic_get(APIC_TASKPRI));
		apic_get(APIC_LVTT);
		apic_get(APIC_TDCR);
		/* A process runs, not a handler, so that no interrupt is in service. */
		apic_set(APIC_EOI, 0);
	}
	cycles = rdtsc_ordered() - begin;
	accesses = (unsigned long long)rounds * ACCESSES_PER_ROUND;
}

static int set_rounds(const char *text, const struct kernel_param *param)
{
	unsigned int rounds;
	int error = kstrtouint(text, 0, &rounds);

	if (!error)
		run(rounds);
	return error;
}

static const struct kernel_param_ops rounds_ops = { .set = set_rounds };
module_param_cb(rounds, &rounds_ops, NULL, 0200);
MODULE_PARM_DESC(rounds, "do this number of rounds of six accesses, at once");

static int get_result(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "accesses=%llu sum=%llu cycles=%llu\n", accesses, sum, cycles);
}

static const struct kernel_param_ops result_ops = { .get = get_result };
module_param_cb(result, &result_ops, NULL, 0400);
MODULE_PARM_DESC(result, "what the last rounds did");

static int __init apic_loop_init(void)
{
	unsigned long long base;
	unsigned int level;
	pte_t *entry;

	if (rdmsrl_safe(MSR_IA32_APICBASE, &base) || !(base & MSR_IA32_APICBASE_ENABLE)) {
		pr_err("apic_loop: the local APIC is disabled\n");
		return -ENODEV;
	}
	if (base & X2APIC_ENABLE) {
		pr_err("apic_loop: the local APIC is in x2APIC mode, without registers in memory\n");
		return -ENODEV;
	}
	entry = lookup_address(APIC_BASE, &level);
	if (!entry || !pte_present(*entry)) {
		pr_err("apic_loop: the kernel has not mapped the local APIC\n");
		return -ENODEV;
	}
	return 0;
}
module_init(apic_loop_init);

static void __exit apic_loop_exit(void)
{
}
module_exit(apic_loop_exit);

MODULE_DESCRIPTION("accesses to the local APIC in a loop");
MODULE_LICENSE("Dual MIT/GPL");
