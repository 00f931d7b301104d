kubectl apply -k OUT FLAGS
# for each node, from here: a kubeconfig that is renewed every week
for unit in service timer; do ssh root@NODE "cat > /etc/systemd/system/fairlead-kubeconfig.$unit" < DEPLOY/systemd/fairlead-kubeconfig.$unit; done
ssh root@NODE 'systemctl start fairlead-kubeconfig.service && systemctl enable --now fairlead-kubeconfig.timer'
# for each node, from here:
kubectl kustomize --load-restrictor=LoadRestrictionsNone OUT/node | ssh root@NODE 'cat > fairlead.yaml && test -s fairlead.yaml && mv fairlead.yaml /etc/kubernetes/manifests/'
kubectl fairlead lint FLAGS
