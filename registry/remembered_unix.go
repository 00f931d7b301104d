//go:build unix

package registry

import (
	"io/fs"
	"os"
	"syscall"
)

// readOwnFile follows no link and waits for no pipe.
const readOwnFile = os.O_RDONLY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK

func ownerOf(info fs.FileInfo) (uid int, known bool) {
	stat, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return 0, false
	}
	return int(stat.Uid), true
}
