package manifests

import (
	"regexp"
	"strings"
)

// Arguments returns a container's arguments as the kubelet expands them on a host: its address for $(HOST_IP) and
// $(POD_IP), and no zone. Pairs in moved replace more, such as the folders of volumes.
func Arguments(args []string, host string, moved ...string) (expanded []string) {
	r := strings.NewReplacer(append([]string{"$(HOST_IP)", host, "$(POD_IP)", host, "$(ZONE)", ""}, moved...)...)
	for _, a := range args {
		expanded = append(expanded, r.Replace(a))
	}
	return expanded
}

// Serve returns the arguments of fairlead serve in rendered manifests, which have one such container.
func Serve(rendered string) (args []string) {
	for _, m := range regexp.MustCompile(`(?m)^ +- (serve|--\S+)$`).FindAllStringSubmatch(rendered, -1) {
		args = append(args, m[1])
	}
	return args
}
