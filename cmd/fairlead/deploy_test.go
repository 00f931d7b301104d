package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Every overlay with every set of components either renders a command line that serve accepts, with
// each component's flags, or is refused with a message.
func TestEveryCombination(t *testing.T) {
	t.Parallel() // kustomize is slow
	disk := filesys.MakeFsInMemory()
	must.Do(t, filepath.WalkDir("../../deploy", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return disk.WriteFile(strings.TrimPrefix(path, "../.."), data)
	}))
	must.Do(t, disk.WriteFile("/own/others.yaml", []byte(`{kind: ClusterRoleBinding, metadata: {name: admins},
apiVersion: rbac.authorization.k8s.io/v1, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: admins}]}`)))
	components := []string{"entrypoint", "audit", "write-status", "events", "monitoring", "ports"}
	flagOf := map[string]string{"entrypoint": "--publish-kubernetes-endpoints", "audit": "--audit-log-path=-", "write-status": "--write-status", "events": "--emit-events", "ports": "--admin-secure-port=9444"}
	for _, base := range []string{"overlays/control-plane", "overlays/load-balancer", "base"} {
		for set := range 1 << len(components) {
			own := types.Kustomization{Resources: []string{"../deploy/" + base}, Components: []string{"../deploy/components/critical-apiservices"}}
			name, flags := base, []string{"--critical-apiservices=v1beta1.metrics.k8s.io"}
			for i, c := range components {
				if set&(1<<i) != 0 {
					own.Components = append(own.Components, "../deploy/components/"+c)
					name += " " + c
					flags = append(flags, flagOf[c])
				}
			}
			if base == "base" {
				own.Components = append(own.Components, "../deploy/components/static-pod")
				own.Resources = append(own.Resources, "others.yaml")
			}
			must.Do(t, disk.WriteFile("/own/kustomization.yaml", must.Get(yaml.Marshal(own))(t)))
			built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, "/own")
			if base == "overlays/load-balancer" && (slices.Contains(flags, flagOf["entrypoint"]) || slices.Contains(flags, flagOf["ports"])) {
				check.Fault(t, "for control-plane nodes, not for the overlay load-balancer", err, "%s", name)
				continue
			}
			must.Do(t, err)
			for _, fault := range wrongWith(string(must.Get(built.AsYaml())(t)), base, flags) {
				t.Errorf("%s: %s", name, fault)
			}
		}
	}
}

// One place names the image, so that one edit upgrades every workload (docs/operations.md#upgrade).
func TestImageIsNamedOnce(t *testing.T) {
	var named []string
	must.Do(t, filepath.WalkDir("../../deploy", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "kustomization.yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), "newTag:") {
			named = append(named, path)
		}
		return err
	}))
	check.Same(t, []string{"../../deploy/components/image/kustomization.yaml"}, named, "places that name the image")
}

// The cluster's aggregator sends UIDs (Kubernetes 1.33). Behind it, extension servers must not lose them.
func TestBehindReadsUIDs(t *testing.T) {
	for _, file := range []string{"overlays/behind/kustomization.yaml", "helm/fairlead/templates/_helpers.tpl"} {
		check.Has(t, string(must.Get(os.ReadFile("../../deploy/"+file))(t)), "- --requestheader-uid-headers=X-Remote-Uid\n")
	}
}

// wrongWith checks the rendered manifests: arguments and mounts of pods, subjects of their bindings, and policies.
func wrongWith(text, base string, flags []string) (faults []string) {
	pods := 0
	for document := range strings.SplitSeq(text, "\n---\n") {
		var kind struct{ Kind string }
		_ = yaml.Unmarshal([]byte(document), &kind)
		switch kind.Kind {
		case "DaemonSet", "Deployment":
			pods++
			var o appsv1.Deployment // a DaemonSet has the same template
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				return []string{err.Error()}
			}
			c := o.Spec.Template.Spec.Containers[0]
			for _, want := range flags {
				if want != "" && !slices.Contains(c.Args, want) {
					faults = append(faults, "there is no "+want)
				}
			}
			faults = append(faults, turnedDown(c.Args)...)
			for i, flag := range []string{"--secure-port=", "--admin-secure-port="} {
				if p := c.Ports[i]; !slices.Contains(c.Args, fmt.Sprint(flag, p.ContainerPort)) || p.HostPort != 0 && p.HostPort != p.ContainerPort {
					faults = append(faults, fmt.Sprintf("port %+v is not that of %s", p, flag))
				}
			}
			if seconds := c.LivenessProbe.TimeoutSeconds; seconds < 15 {
				faults = append(faults, fmt.Sprintf("livenessProbe.timeoutSeconds is %d, want 15", seconds))
			}
			if seconds := c.ReadinessProbe.TimeoutSeconds; seconds < 5 { // the default of 1 takes all replicas of starved nodes out
				faults = append(faults, fmt.Sprintf("readinessProbe.timeoutSeconds is %d, want 5", seconds))
			}
			for _, s := range o.Spec.Template.Spec.TopologySpreadConstraints {
				if !slices.Contains(s.MatchLabelKeys, "pod-template-hash") {
					faults = append(faults, "pods that are being replaced count: the new ones may come to one node")
				}
			}
			for _, v := range o.Spec.Template.Spec.Volumes {
				if v.HostPath != nil && *v.HostPath.Type != "File" {
					faults = append(faults, v.HostPath.Path+" is mounted, which is more than a file")
				}
			}
		case "RoleBinding", "ClusterRoleBinding":
			var o rbacv1.RoleBinding
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				return []string{err.Error()}
			}
			if static := base == "base" && o.Name != "admins"; static != (len(o.Subjects) == 2) || len(o.Subjects) > 2 {
				faults = append(faults, fmt.Sprintf("%s is bound to %v", o.Name, o.Subjects))
			}
		case "ValidatingAdmissionPolicy":
			var o admissionv1.ValidatingAdmissionPolicy
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				return []string{err.Error()}
			}
			m, open := o.Spec.MatchConstraints, func(r admissionv1.NamedRuleWithOperations) bool { return r.Scope == nil }
			if m.MatchPolicy == nil || m.NamespaceSelector == nil || m.ObjectSelector == nil || slices.ContainsFunc(m.ResourceRules, open) {
				faults = append(faults, o.Name+" lacks a default, by which Argo CD sees it differ from the cluster's for ever")
			}
		}
	}
	if (base == "base") != (pods == 0) {
		faults = append(faults, fmt.Sprintf("%d pods", pods))
	}
	return faults
}

// turnedDown returns serve's errors for args, except missing files, which exist only on a node.
func turnedDown(args []string) (faults []string) {
	o := &options{}
	if err := flagSet(o).Parse(manifests.Arguments(args[1:], "192.0.2.1")); err != nil {
		return []string{err.Error()}
	}
	if err := o.validate(); err != nil {
		faults = strings.Split(err.Error(), "\n")
	}
	return slices.DeleteFunc(faults, func(fault string) bool { return strings.Contains(fault, "no such file or directory") })
}
