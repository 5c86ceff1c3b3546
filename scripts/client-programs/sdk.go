// Boots the guest of scripts/get-client-guest with firecracker-go-sdk, logs in over vsock, saves the
// machine and restores two clones of it.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	firecracker "github.com/firecracker-microvm/firecracker-go-sdk"
	"github.com/firecracker-microvm/firecracker-go-sdk/client/models"
	"github.com/firecracker-microvm/firecracker-go-sdk/vsock"
)

var command, guest, work string

func check(what string, err error) {
	if err != nil {
		log.Fatalf("%s: %v", what, err)
	}
}

// start runs a process in a folder of its own, where its vsock is, and starts or restores a machine.
func start(ctx context.Context, name string, config firecracker.Config, opts ...firecracker.Opt) *firecracker.Machine {
	folder := filepath.Join(work, name)
	check("folder", os.MkdirAll(folder, 0o700))
	config.SocketPath = filepath.Join(folder, "api.sock")
	config.LogPath = filepath.Join(folder, "log")
	config.MetricsPath = filepath.Join(folder, "metrics")
	config.VMID = name
	process := firecracker.VMCommandBuilder{}.WithBin(command).WithSocketPath(config.SocketPath).
		AddArgs("--id", name).Build(ctx)
	process.Dir = folder
	console, err := os.Create(filepath.Join(folder, "console"))
	check("console", err)
	process.Stdout, process.Stderr = console, console
	machine, err := firecracker.NewMachine(ctx, config, append(opts, firecracker.WithProcessRunner(process))...)
	check(name+": new", err)
	check(name+": start", machine.Start(ctx))
	return machine
}

// proxy connects standard input and output with port 22 of the guest, for ssh.
func proxy(path string) {
	connection, err := vsock.Dial(path, 22, vsock.WithDialTimeout(time.Second))
	check("vsock", err)
	go func() {
		_, _ = io.Copy(connection, os.Stdin)
		_ = connection.(*net.UnixConn).CloseWrite()
	}()
	_, _ = io.Copy(os.Stdout, connection)
}

// login runs a command in the guest, by ssh over vsock. The guest may not be ready yet.
func login(ctx context.Context, name string, line string) string {
	self, err := os.Executable()
	check("own name", err)
	for {
		command := exec.CommandContext(ctx, "ssh", "-i", filepath.Join(guest, "key"),
			"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
			"-o", "ConnectTimeout=5",
			"-o", fmt.Sprintf("ProxyCommand=%s proxy %s", self, filepath.Join(work, name, "v.sock")), "root@"+name, line)
		output, err := command.CombinedOutput()
		if err == nil {
			return strings.Join(strings.Fields(string(output)), " ")
		}
		if ctx.Err() != nil {
			console, _ := exec.Command("tail", "-n", "20", filepath.Join(work, name, "console")).Output()
			log.Fatalf("%s: no login: %v: %s\n%s", name, err, output, console)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func main() {
	if os.Args[1] == "proxy" {
		proxy(os.Args[2])
		return
	}
	command, guest, work = os.Args[1], os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Second)
	defer cancel()
	root := filepath.Join(guest, "root.ext4")
	config := firecracker.Config{
		KernelImagePath: filepath.Join(guest, "vmlinux"),
		InitrdPath:      filepath.Join(guest, "initrd.img"),
		KernelArgs:      "console=ttyS0 reboot=k panic=1",
		// Clones share a disk that they only read.
		Drives: []models.Drive{{
			DriveID:      firecracker.String("root"),
			PathOnHost:   &root,
			IsRootDevice: firecracker.Bool(true),
			IsReadOnly:   firecracker.Bool(true),
		}},
		NetworkInterfaces: firecracker.NetworkInterfaces{{
			StaticConfiguration: &firecracker.StaticNetworkConfiguration{
				MacAddress:  "06:00:AC:10:00:02",
				HostDevName: "user",
			},
		}},
		VsockDevices: []firecracker.VsockDevice{{ID: "v", Path: "v.sock", CID: 3}},
		MachineCfg: models.MachineConfiguration{
			VcpuCount:       firecracker.Int64(1),
			MemSizeMib:      firecracker.Int64(192),
			TrackDirtyPages: true,
		},
	}
	first := start(ctx, "first", config)
	fmt.Println("first:", login(ctx, "first", "uname -sr; echo remembered >/tmp/note; cat /sys/class/net/eth0/address"))
	instance, err := first.DescribeInstanceInfo(ctx)
	check("instance", err)
	fmt.Println("instance:", *instance.AppName, *instance.ID, *instance.State, *instance.VmmVersion)
	version, err := first.GetFirecrackerVersion(ctx)
	check("version", err)
	fmt.Println("version:", version)
	check("pause", first.PauseVM(ctx))
	memory, state := filepath.Join(work, "memory"), filepath.Join(work, "state")
	check("snapshot", first.CreateSnapshot(ctx, memory, state))
	check("resume", first.ResumeVM(ctx))
	fmt.Println("resumed:", login(ctx, "first", "cat /tmp/note"))
	for _, name := range []string{"clone-1", "clone-2"} {
		restored := firecracker.Config{NetworkInterfaces: config.NetworkInterfaces}
		clone := start(ctx, name, restored, firecracker.WithSnapshot(memory, state))
		check("resume", clone.ResumeVM(ctx))
		fmt.Println(name+":", login(ctx, name, "cat /tmp/note; ls /tmp"))
		defer clone.StopVMM()
	}
	check("shutdown", first.Shutdown(ctx))
	if err := first.Wait(ctx); err != nil {
		fmt.Println("first ended:", err)
	} else {
		fmt.Println("first ended")
	}
}
