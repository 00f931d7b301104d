package main

import (
	"bufio"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/internal/printable"
)

// layout is a way to run Fairlead: init writes a kustomization of what ships in deploy/.
type layout struct{ resource, kind, name string }

func layouts() map[string]layout {
	return map[string]layout{
		"control-plane": {"overlays/control-plane", "DaemonSet", "fairlead"},
		"static-pod":    {"base", "Pod", "fairlead"}, // not in the cluster: its manifest is a second kustomization
		"load-balancer": {"overlays/load-balancer", "Deployment", "fairlead"},
		"managed":       {"overlays/managed", "Deployment", "fairlead"},
		"behind":        {"overlays/behind", "Deployment", "fairlead"},
		"etcd":          {"overlays/etcd", "Deployment", "fairlead-etcd-front"},
	}
}

// next has the commands that follow init, by layout. OUT is the folder that was written.
//
//go:embed next/*.sh
var next embed.FS

// podFlags are what components that suit a static pod add to other workloads.
func podFlags() map[string][]string {
	return map[string][]string{
		"critical-apiservices": {"--critical-apiservices=v1beta1.metrics.k8s.io"},
		"entrypoint":           {"--publish-kubernetes-endpoints", "--advertise-address=$(HOST_IP)"},
		"events":               {"--emit-events"},
		"lease":                nil,
		"monitoring":           nil,
		"write-status":         {"--write-status"},
	}
}

type installer struct {
	layout, deploy, out, serversFrom string
	components, etcd, names          []string
	ports                            [2]int32 // secure and admin. 0: those of the manifests, or others that are free
	yes, wrote                       bool
	cluster                          [2]string // --kubeconfig and --context, which the next commands need, too

	in    io.Reader
	lines *bufio.Scanner // of a terminal. Nil: there is none
	print io.Writer
	found *linter  // what the preflight saw
	args  []string // of Fairlead, after those that ship
}

func (i *installer) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&i.layout, "layout", "", "How Fairlead is to run: control-plane, static-pod, load-balancer, "+
		"managed, behind or etcd. Empty: make Secrets.")
	fs.StringVar(&i.out, "out", "fairlead", "Folder that is written.")
	fs.StringVar(&i.deploy, "deploy", "deploy", "Folder of the manifests that ship, of a release or the source.")
	fs.StringSliceVar(&i.components, "components", nil, "Folders of deploy/components to add, such as audit,events.")
	fs.Int32Var(&i.ports[0], "secure-port", 0, "Port on control-plane nodes. 0: 8443, or another one that is free.")
	fs.Int32Var(&i.ports[1], "admin-secure-port", 0, "Admin port there. 0: 8444, or another one that is free.")
	fs.StringVar(&i.serversFrom, "local-apiservers-from", "",
		"How replicas on nodes find all kube-apiservers: endpointslice, lease, or nodes (each present node is named). "+
			"Empty: lease with the component entrypoint, endpointslice if it names each node, or else nodes.")
	fs.StringSliceVar(&i.etcd, "etcd-servers", nil, "URLs of the etcd for --layout=etcd.")
	fs.BoolVar(&i.yes, "yes", false,
		"Ask nothing, go on after errors of the preflight, and replace files with other content.")
}

func (i *installer) onNodes() bool { return i.layout == "control-plane" || i.layout == "static-pod" }

func (i *installer) validate() error {
	f := &cli.Faults{}
	f.If(layouts()[i.layout].kind == "",
		"--layout %q is none of control-plane, static-pod, load-balancer, managed, behind, etcd", i.layout)
	for _, part := range append(under("components", i.components), "base") {
		_, err := os.Stat(filepath.Join(i.deploy, part, "kustomization.yaml"))
		f.If(err != nil, "--deploy, --components: %w", err)
	}
	f.If(!i.onNodes() && i.ports != [2]int32{}, "--secure-port and --admin-secure-port are for control-plane "+
		"and static-pod: pods of other layouts have addresses of their own")
	f.If(!slices.Contains([]string{"", "endpointslice", "lease", "nodes"}, i.serversFrom),
		"--local-apiservers-from %q is none of endpointslice, lease, nodes", i.serversFrom)
	for _, c := range i.components {
		_, ok := podFlags()[c] // which, as these, changes nothing of etcd's: kustomize says nothing then
		idle := ok || slices.Contains([]string{"monitoring-own-ca", "policy", "ports", "static-pod"}, c)
		own := c == "monitoring" // which verifies by the cluster's CA: monitoring-own-ca is for these
		bad := map[string]bool{"static-pod": !ok, "etcd": idle, "managed": own, "behind": own}
		f.If(bad[i.layout], "component %s is not for --layout=%s", c, i.layout)
		f.If(c == "cert-manager" && len(i.names) > 0, "--serving-names: patch Certificate fairlead-serving instead")
	}
	return errors.Join(*f...)
}

func (i *installer) run(ctx context.Context, cfg *rest.Config) error {
	if err := i.validate(); err != nil {
		return cli.Usage(err)
	}
	if !i.yes && isTerminal(i.in) {
		signal.Reset(os.Interrupt) // at a prompt it ends the process: nothing watches the context
		i.lines = bufio.NewScanner(i.in)
	}
	i.found = newLinter(&cliflag.NamedFlagSets{})
	if i.layout == "managed" || i.layout == "behind" {
		i.found.LocalIdentity = cli.Impersonate
	}
	if i.layout != "etcd" { // it uses nothing of the cluster that it runs in
		i.found.inspect(ctx, cfg)
	}
	err := i.found.report(i.print)
	if err != nil && !i.sure("The preflight found "+err.Error()+". Write manifests nevertheless?") {
		return fmt.Errorf("the preflight found %w: correct that first, or give --yes", err)
	}
	if err = i.choose(); err != nil {
		return cli.Usage(err)
	}
	return i.write()
}

func (i *installer) sure(question string) bool {
	return i.yes || strings.HasPrefix(strings.ToLower(i.ask(question, "no")), "y")
}

// ask returns what somebody answers on a terminal, and the proposal otherwise.
func (i *installer) ask(question, proposal string) string {
	if i.lines == nil {
		return proposal
	}
	_, _ = fmt.Fprintf(i.print, "%s [%s] ", printable.Line(question), printable.Line(proposal)) // no answer if unseen
	i.lines.Scan()
	return cmp.Or(strings.TrimSpace(i.lines.Text()), proposal)
}

func (i *installer) choose() error {
	switch s := i.found.survey; {
	case i.layout == "etcd":
		urls := i.ask("URLs of the etcd", strings.Join(i.etcd, ","))
		for u := range strings.SplitSeq(urls, ",") {
			at, secure := strings.CutPrefix(u, "https://") // what ships has certificates for it
			if _, port, _ := net.SplitHostPort(strings.TrimSuffix(at, "/")); !secure || port == "" {
				return fmt.Errorf("--layout=etcd needs --etcd-servers=https://HOST:PORT,…, not %q", u)
			}
		}
		i.args = append(i.args, "--registry=etcd:"+urls+",dir:/etc/fairlead/registry")
	case i.layout == "managed" && len(i.names) == 0 && !slices.Contains(i.components, "cert-manager"):
		i.names = []string{i.ask("Names and addresses that clients will use", "fairlead.kube-system.svc")}
	case i.onNodes() && (s == nil || len(s.nodes) == 0):
		return fmt.Errorf("no node with the label node-role.kubernetes.io/control-plane was seen, "+
			"on which --layout=%s would run", i.layout)
	case i.onNodes():
		i.servers(s)
		return i.choosePorts(s)
	}
	return checkNames(i.names)
}

func (i *installer) choosePorts(s *survey) error {
	for n, ships := range []int32{securePort, adminPort} {
		flag, port := []string{"secure-port", "admin-secure-port"}[n], cmp.Or(i.ports[n], ships)
		if by := s.taken(port); by != nil && i.ports[n] == 0 {
			for s.taken(port) != nil {
				port += 1000 // 8443, 9443, 10443: people recognize them
			}
			taken := fmt.Sprintf("Port %d is used by pod %s. Another one", ships, by[0])
			if _, err := fmt.Sscan(i.ask(taken, fmt.Sprint(port)), &port); err != nil {
				return fmt.Errorf("--%s: %w", flag, err)
			}
		}
		if by := s.taken(port); by != nil {
			return fmt.Errorf("--%s: port %d is used by pod %s", flag, port, by[0])
		}
		if i.ports[n] = port; port != ships {
			i.args = append(i.args, fmt.Sprintf("--%s=%d", flag, port))
		}
	}
	f := &cli.Faults{} // lower ports need a capability, and the pods on nodes have none
	f.If(slices.Min(i.ports[:]) < 1024 || slices.Max(i.ports[:]) > 65535, "a port is a number from 1024 to 65535")
	f.If(i.ports[0] == i.ports[1], "--secure-port and --admin-secure-port are both %d", i.ports[0])
	return errors.Join(*f...)
}

// servers says how replicas on nodes find all kube-apiservers, besides the node's own.
func (i *installer) servers(s *survey) {
	from, ships := cmp.Or(i.serversFrom, "nodes"), "endpointslice"
	entrypoint := slices.Contains(i.components, "entrypoint")
	if entrypoint && i.layout == "control-plane" {
		ships = "lease" // the component has replaced it
	}
	if i.serversFrom == "" && entrypoint {
		from = "lease"
	} else if i.serversFrom == "" && i.found.listed {
		from = "endpointslice"
	}
	if from == "lease" && !entrypoint && !slices.Contains(i.components, "lease") {
		i.components = append(i.components, "lease") // the right to list them
	}
	if from != ships {
		i.args = append(i.args, "--local-apiservers-from="+strings.TrimPrefix(from, "nodes"))
	}
	for n := range s.nodes {
		if own := internal(&s.nodes[n]); from == "nodes" && len(own) > 0 {
			i.args = append(i.args, "--local-apiserver=https://"+net.JoinHostPort(own[0], "6443")) // kubeadm's port
		}
	}
}

func (i *installer) write() error {
	to := layouts()[i.layout]
	own := types.Kustomization{Resources: []string{to.resource}, Components: under("components", i.components)}
	if i.layout == "static-pod" {
		for _, c := range i.components {
			i.args = append(i.args, podFlags()[c]...)
		}
		pod := types.Kustomization{Resources: []string{"static-pod/fairlead.yaml"}, Patches: i.patches(to, "/spec")}
		if err := i.put("node", pod); err != nil {
			return err
		}
		own.Components = append(own.Components, "components/static-pod") // the last one
	} else {
		own.Patches = i.patches(to, "/spec/template/spec")
	}
	if err := i.put("", own); err != nil {
		return err
	}
	if !i.wrote {
		_, err := io.WriteString(i.print, "nothing changed\n")
		return err
	}
	commands, _ := next.ReadFile("next/" + i.layout + ".sh") // every layout has one
	first, rest, _ := strings.Cut(string(commands), "\n")    // of init, whose Secrets cert-manager makes
	if !slices.Contains(i.components, "cert-manager") || !strings.Contains(first, " init ") {
		rest = string(commands)
	}
	var cluster strings.Builder
	for n, value := range i.cluster {
		if value != "" {
			fmt.Fprintf(&cluster, " --%s=%q", []string{"kubeconfig", "context"}[n], value)
		}
	}
	names := strings.Join(i.names, ",")
	words := strings.NewReplacer("DEPLOY", i.deploy, "OUT", i.out, "NAMES", names, " FLAGS", cluster.String())
	_, err := words.WriteString(i.print, "\nNext:\n"+rest)
	return err
}

// patches add the arguments, and change the ports of a node. Of a flag that is given twice, the last one counts.
func (i *installer) patches(to layout, spec string) []types.Patch {
	var ops []string
	for _, a := range i.args {
		ops = append(ops, fmt.Sprintf("- {op: add, path: %s/containers/0/args/-, value: %q}", spec, a))
	}
	for n, port := range i.ports {
		if i.onNodes() && port != []int32{securePort, adminPort}[n] {
			for _, field := range []string{"containerPort", "hostPort"} {
				ops = append(ops, fmt.Sprintf(
					"- {op: replace, path: %s/containers/0/ports/%d/%s, value: %d}", spec, n, field, port))
			}
		}
	}
	if ops == nil {
		return nil
	}
	selector := &types.Selector{}
	selector.Kind, selector.Name = to.kind, to.name
	return []types.Patch{{Patch: strings.Join(ops, "\n"), Target: selector}}
}

func under(folder string, names []string) (all []string) {
	for _, n := range names {
		all = append(all, filepath.ToSlash(filepath.Join(folder, n)))
	}
	return all
}

// put writes a kustomization below --out. If its file has other content, it says what differs, and keeps the old one.
func (i *installer) put(folder string, k types.Kustomization) error {
	file := filepath.Join(i.out, folder, "kustomization.yaml")
	from, err1 := filepath.Abs(filepath.Dir(file))
	ships, err2 := filepath.Abs(i.deploy)
	ships, err3 := filepath.Rel(from, ships) // kustomize takes no absolute paths
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("finding %s from %s: %w", i.deploy, file, err)
	}
	k.Resources, k.Components = under(ships, k.Resources), under(ships, k.Components)
	k.APIVersion, k.Kind = types.KustomizationVersion, types.KustomizationKind
	body, err := yaml.Marshal(k)
	if err != nil {
		return err
	}
	text := "# Written by kubectl fairlead init --layout=" + i.layout + ".\n" + string(body)
	before, err := os.ReadFile(file)
	if string(before) == text {
		_, err := fmt.Fprintf(i.print, "%s unchanged\n", file)
		return err
	}
	if err == nil {
		differ(i.print, string(before), text)
		kept := file + "~"
		for n := 2; ; n++ { // no older one is lost
			if _, err := os.Lstat(kept); err != nil {
				break
			}
			kept = fmt.Sprintf("%s~%d", file, n)
		}
		if !i.sure(file + " has other content. Replace it, and keep it as " + kept + "?") {
			return fmt.Errorf("%s has other content: --yes replaces it, and keeps it as %s", file, kept)
		}
		err = os.Rename(file, kept)
	} else if os.IsNotExist(err) {
		err = os.MkdirAll(filepath.Dir(file), 0o777) //nolint:gosec // the umask decides
	}
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o666) //nolint:gosec // it has no secret: the umask decides
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	i.wrote = true
	_, err = fmt.Fprintf(i.print, "%s written\n", file)
	return err
}
